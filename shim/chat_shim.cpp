#include "guard.h"

#include "chat.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

struct lb_chat {
    common_chat_templates_ptr templates;
};

extern "C" int32_t lb_chat_new(const llama_model * model, lb_chat ** out, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        *out = new lb_chat{ common_chat_templates_init(model, "") };
        return LB_OK;
    });
}

extern "C" void lb_chat_free(lb_chat * chat) {
    delete chat;
}

extern "C" int32_t lb_chat_apply(const lb_chat * chat, const char * messages, size_t len, bool add_generation_prompt, char ** out, size_t * out_len, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        common_chat_templates_inputs inputs;
        inputs.messages              = common_chat_msgs_parse_oaicompat(common_json::parse(std::string(messages, len)));
        inputs.add_generation_prompt = add_generation_prompt;
        // Tools and reasoning are not parsed yet, so the parser that goes with a prompt need not be built.
        inputs.force_pure_content    = true;
        const std::string prompt = common_chat_templates_apply(chat->templates.get(), inputs).prompt;
        char * copy = static_cast<char *>(std::malloc(prompt.size() + 1));
        if (copy == nullptr) {
            throw std::bad_alloc();
        }
        std::memcpy(copy, prompt.c_str(), prompt.size() + 1);
        *out     = copy;
        *out_len = prompt.size();
        return LB_OK;
    });
}

extern "C" void lb_text_free(char * text) {
    std::free(text);
}
