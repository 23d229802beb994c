#include "guard.h"

#include "chat.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

struct lb_chat {
    common_chat_templates_ptr templates;
};

struct lb_chat_parser {
    common_chat_parser_params params;
};

// A text for the caller, who frees it.
static int32_t give(const std::string & text, char ** out, size_t * out_len) {
    char * copy = static_cast<char *>(std::malloc(text.size() + 1));
    if (copy == nullptr) {
        throw std::bad_alloc();
    }
    std::memcpy(copy, text.c_str(), text.size() + 1);
    *out     = copy;
    *out_len = text.size();
    return LB_OK;
}

extern "C" int32_t lb_chat_new(const llama_model * model, const char * source, size_t len, lb_chat ** out, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        const std::string text(source, len);
        // `common` forgets the reason of what it throws when it makes templates, and this one names the line.
        const char * own = llama_model_chat_template(model, nullptr);
        common_chat_template check(text.empty() && own != nullptr ? own : text, "", "");
        *out = new lb_chat{ common_chat_templates_init(model, text) };
        return LB_OK;
    });
}

extern "C" void lb_chat_free(lb_chat * chat) {
    delete chat;
}

extern "C" int32_t lb_chat_caps(const lb_chat * chat, char ** out, size_t * out_len, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        common_json caps = common_json::object();
        for (const auto & [name, holds] : common_chat_templates_get_caps(chat->templates.get())) {
            caps[name] = holds;
        }
        return give(caps.dump_safe(), out, out_len);
    });
}

// What `common` takes, from JSON with its names.
static common_chat_templates_inputs inputs_of(const common_json & asked) {
    common_chat_templates_inputs inputs;
    inputs.messages              = common_chat_msgs_parse_oaicompat(asked.at("messages"));
    inputs.add_generation_prompt = asked.value("add_generation_prompt", true);
    inputs.force_pure_content    = asked.value("pure", false);
    if (asked.value("continue_final_message", false)) {
        inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
        inputs.add_generation_prompt  = false;
    }
    if (asked.contains("tools")) {
        inputs.tools               = common_chat_tools_parse_oaicompat(asked.at("tools"));
        inputs.tool_choice         = common_chat_tool_choice_parse_oaicompat(asked.value("tool_choice", "auto"));
        inputs.parallel_tool_calls = asked.value("parallel_tool_calls", false);
    }
    inputs.enable_thinking  = asked.value("enable_thinking", true);
    inputs.reasoning_format = asked.value("reasoning", true) ? COMMON_REASONING_FORMAT_DEEPSEEK : COMMON_REASONING_FORMAT_NONE;
    inputs.json_schema      = asked.value("json_schema", "");
    if (asked.contains("kwargs")) {
        for (const auto & [name, value] : asked.at("kwargs").items()) {
            inputs.chat_template_kwargs[name] = value.dump();
        }
    }
    return inputs;
}

// What `common` made of it, as JSON with its names.
static common_json made(const common_chat_params & params) {
    common_json triggers = common_json::array();
    for (const auto & trigger : params.grammar_triggers) {
        common_json one = common_json::object();
        one["type"]  = static_cast<int32_t>(trigger.type);
        one["value"] = trigger.value;
        triggers.push_back(one);
    }
    common_json out = common_json::object();
    out["prompt"]            = params.prompt;
    out["format"]            = static_cast<int32_t>(params.format);
    out["grammar"]           = params.grammar;
    out["grammar_lazy"]      = params.grammar_lazy;
    out["grammar_triggers"]  = triggers;
    out["generation_prompt"] = params.generation_prompt;
    out["supports_thinking"] = params.supports_thinking;
    out["thinking_start"]    = params.thinking_start_tag;
    out["thinking_ends"]     = params.thinking_end_tags;
    out["preserved_tokens"]  = params.preserved_tokens;
    out["stop"]              = params.additional_stops;
    out["parser"]            = params.parser;
    return out;
}

// Conversations of the kinds that there are.
static const char * const TRIALS[] = {
    R"({"messages": [{"role": "user", "content": "Hello"}]})",
    R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "<think>Hm.</think>Hi"}, {"role": "user", "content": "And?"}], "enable_thinking": false})",
    R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}], "add_generation_prompt": false, "pure": true})",
    R"({"messages": [{"role": "user", "content": "Hello"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c00000001", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c00000001", "name": "f", "content": "2"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]})",
};

extern "C" int32_t lb_chat_try(const char * source, size_t len, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&]() -> int32_t {
        try {
            const auto templates = common_chat_templates_init(nullptr, std::string(source, len), "<s>", "</s>");
            for (const char * trial : TRIALS) {
                try {
                    common_chat_templates_apply(templates.get(), inputs_of(common_json::parse(trial)));
                } catch (const std::bad_alloc &) {
                    throw;
                } catch (const std::exception &) {
                    // What it takes is its own affair.
                }
            }
        } catch (const std::bad_alloc &) {
            return 1;
        } catch (const std::length_error &) {
            return 1;
        } catch (const std::exception &) {
            // Nor is it this one's affair whether it parses.
        }
        return LB_OK;
    });
}

extern "C" int32_t lb_chat_apply(const lb_chat * chat, const char * asked, size_t len, char ** out, size_t * out_len, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        const auto inputs = inputs_of(common_json::parse(std::string(asked, len)));
        return give(made(common_chat_templates_apply(chat->templates.get(), inputs)).dump_safe(), out, out_len);
    });
}

extern "C" int32_t lb_chat_parser_new(const char * syntax, size_t len, lb_chat_parser ** out, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        const auto given = common_json::parse(std::string(syntax, len));
        common_chat_parser_params params;
        params.format            = static_cast<common_chat_format>(given.at("format").get<int32_t>());
        params.generation_prompt = given.value("generation_prompt", "");
        params.reasoning_format  = given.value("reasoning", true) ? COMMON_REASONING_FORMAT_DEEPSEEK : COMMON_REASONING_FORMAT_NONE;
        params.is_continuation   = given.value("continues", false);
        const std::string parser = given.value("parser", "");
        if (!parser.empty()) {
            params.parser.load(parser);
        }
        *out = new lb_chat_parser{ std::move(params) };
        return LB_OK;
    });
}

extern "C" void lb_chat_parser_free(lb_chat_parser * parser) {
    delete parser;
}

extern "C" int32_t lb_chat_parse(const lb_chat_parser * parser, const char * text, size_t len, bool is_partial, char ** out, size_t * out_len, char * err, size_t err_cap) {
    return lb_guard(err, err_cap, [&] {
        const auto message = common_chat_parse(std::string(text, len), is_partial, parser->params);
        common_json calls = common_json::array();
        for (const auto & call : message.tool_calls) {
            common_json one = common_json::object();
            one["id"]        = call.id;
            one["name"]      = call.name;
            one["arguments"] = call.arguments;
            calls.push_back(one);
        }
        common_json found = common_json::object();
        found["content"]           = message.render_content("");
        found["reasoning_content"] = message.reasoning_content;
        found["tool_calls"]        = calls;
        return give(found.dump_safe(), out, out_len);
    });
}

extern "C" void lb_text_free(char * text) {
    std::free(text);
}
