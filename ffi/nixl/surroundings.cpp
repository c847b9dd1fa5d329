// What the shim is loaded by, and what it is told.

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "shared.hpp"

namespace polyrail_nixl {
namespace {

constexpr const char* TESTED[] = {
#include "tested.inc"
};
constexpr const char* VERSION_VARIABLE = "POLYRAIL_NIXL_VERSION";

std::string all_tested() {
    std::string all;
    for (const char* version : TESTED) all += (all.empty() ? "" : ", ") + std::string(version);
    return all;
}

// The version of the wheel that a library is in: `.nixl_cu12.mesonpy.libs/libnixl.so` lies beside `nixl_cu12-1.5.1.dist-info`.
// Empty: it is in none. `std::filesystem` is newer than the oldest C++ library that this shim is loaded beside.
std::string version_of_wheel(const std::string& library) {
    const auto file = library.rfind('/'), start = library.rfind('/', file - 1);
    if (start == std::string::npos) return "";
    const std::string folder = library.substr(start + 1, file - start - 1), beside = library.substr(0, start + 1);
    const auto end = folder.find(".mesonpy.libs");
    if (folder.empty() || folder[0] != '.' || end == std::string::npos) return "";
    const std::string begin = folder.substr(1, end - 1) + "-", suffix = ".dist-info";
    const std::unique_ptr<DIR, int (*)(DIR*)> all(opendir(beside.c_str()), [](DIR* one) { return closedir(one); });
    while (const dirent* entry = all ? readdir(all.get()) : nullptr) {
        const std::string name = entry->d_name;
        if (name.starts_with(begin) && name.ends_with(suffix))
            return name.substr(begin.size(), name.size() - begin.size() - suffix.size());
    }
    return "";
}

// What the engine is called: names of agents may have any characters and length, those of engines not.
std::string name_of_engine(const std::string& agent) {
    std::string name = "nixl:" + agent.substr(0, 200);
    for (char& one : name)
        if (one <= ' ' || one > '~') one = '_';
    return name;
}

}  // namespace

bool is_tested(const void* caller) {
    Dl_info found{};
    std::string version, library = "what loads it";
    if (dladdr(caller, &found) != 0 && found.dli_fname != nullptr) {
        const std::unique_ptr<char, void (*)(void*)> real(realpath(found.dli_fname, nullptr), std::free);
        library = real ? real.get() : found.dli_fname;
        version = version_of_wheel(library);
    }
    if (const char* said = std::getenv(VERSION_VARIABLE); said != nullptr && version.empty()) version = said;
    if (std::ranges::any_of(TESTED, [&](const char* one) { return version == one; })) return true;
    if (version.empty()) {
        say("not loaded: " + library + " is in no wheel of NIXL, so its version is not known. If it was built from one of " +
            all_tested() + ", say so in " + VERSION_VARIABLE + ".");
    } else {
        say("not loaded: it has not been tried with NIXL " + version + ", only with " + all_tested() + ".");
    }
    return false;
}

std::vector<std::pair<std::string, std::string>> configuration(const nixl_interface::Parameters& parameters,
                                                               const std::string& agent) {
    std::vector<std::pair<std::string, std::string>> made;
    if (std::getenv("POLYRAIL_LISTEN") == nullptr) made.emplace_back("listen", "127.0.0.1:0");
    made.emplace_back("name", name_of_engine(agent));
    for (const auto& [key, value] : parameters)
        if (!value.empty()) made.emplace_back(key, value);
    return made;
}

}  // namespace polyrail_nixl
