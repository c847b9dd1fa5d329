// What the parts of the shim share: words on standard error, statuses, and the library that it was loaded by.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "interface.hpp"
#include "polyrail.h"

namespace polyrail_nixl {

using nixl_interface::Status;

// One line on standard error.
inline void say(const std::string& text) { std::fprintf(stderr, "POLYRAIL: %s\n", text.c_str()); }

// What NIXL is told where a call of the engine has failed.
inline Status status_of(int code) {
    switch (code) {
        case POLYRAIL_OK: return Status::SUCCESS;
        case POLYRAIL_ERROR_PEER_LOST:
        case POLYRAIL_ERROR_CONNECT: return Status::REMOTE_DISCONNECT;
        case POLYRAIL_ERROR_NOT_FOUND: return Status::NOT_FOUND;
        case POLYRAIL_ERROR_ARGUMENT:
        case POLYRAIL_ERROR_RANGE: return Status::INVALID_PARAMETER;
        case POLYRAIL_ERROR_INCOMPATIBLE: return Status::MISMATCH;
        case POLYRAIL_ERROR_FORBIDDEN:
        case POLYRAIL_ERROR_IN_USE: return Status::NOT_ALLOWED;
        default: return Status::BACKEND;
    }
}

// The error of one call.
struct Error : polyrail_error {
    Error() : polyrail_error(POLYRAIL_NEW(polyrail_error)) {}

    // Says what failed, and what NIXL is told.
    Status told(const std::string& what) const {
        say(what + ": " + message);
        return status_of(code);
    }
};

// Whether the library that calls is one that this shim has been tried with; says so if not. `caller` is an address in it.
bool is_tested(const void* caller);

// The keys of an engine's configuration with their values, from back-end parameters: keys as in docs/config.md. An empty
// value says nothing.
std::vector<std::pair<std::string, std::string>> configuration(const nixl_interface::Parameters& parameters,
                                                               const std::string& agent);

}  // namespace polyrail_nixl
