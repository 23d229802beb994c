// Turns an exception into a code and a text.
#pragma once

#include "llama_shim.h"

#include <cstdio>
#include <exception>

template <typename F>
static int32_t lb_guard(char * err, size_t err_cap, F && body) noexcept {
    const auto note = [&](const char * what) {
        if (err != nullptr && err_cap > 0) {
            std::snprintf(err, err_cap, "%s", what);
        }
    };
    note("");
    try {
        return body();
    } catch (const std::exception & e) {
        note(e.what());
    } catch (...) {
        note("an exception of an unknown type");
    }
    return LB_THROWN;
}
