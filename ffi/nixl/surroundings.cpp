// What the shim is loaded by, and what it is told.

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
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

// A configuration, as a tree.
struct Node {
    std::map<std::string, std::unique_ptr<Node>> children;
    std::string value;

    std::string json() const {
        if (children.empty()) return value;
        std::string text = "{";
        for (const auto& [key, child] : children) {
            if (text.size() > 1) text += ",";
            text += "\"" + key + "\":" + child->json();
        }
        return text + "}";
    }
};

std::string json_text(std::string_view text) {
    std::string made = "\"";
    for (const char one : text) {
        if (one == '"' || one == '\\') made += '\\';
        if (static_cast<unsigned char>(one) >= ' ') made += one;
    }
    return made + "\"";
}

bool is_list(const std::string& key) {
    constexpr std::array names{"rails", "supplementary", "peers", "numa_penalties"};
    const auto slash = key.rfind('/');
    const std::string name = slash == std::string::npos ? key : key.substr(slash + 1);
    return std::ranges::find(names, name) != names.end();
}

bool is_number(const std::string& text) {
    char* end = nullptr;
    std::strtod(text.c_str(), &end);
    const bool begins = !text.empty() && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
    return begins && *end == 0;
}

// A value of NIXL's, which is always text, as the JSON that the engine reads.
std::string value(const std::string& key, const std::string& text) {
    if (text == "true" || text == "false" || is_number(text) || text.starts_with("[")) return text;
    if (!is_list(key)) return json_text(text);
    std::string made = "[";
    for (std::size_t at = 0; at <= text.size();) {
        const auto comma = std::min(text.find(',', at), text.size());
        const std::string one = text.substr(at, comma - at);
        made += (at == 0 ? "" : ",") + (is_number(one) && key.ends_with("penalties") ? one : json_text(one));
        at = comma + 1;
    }
    return made + "]";
}

void put(Node& root, const std::string& key, std::string value) {
    Node* node = &root;
    for (std::size_t at = 0; at <= key.size();) {
        const auto slash = std::min(key.find('/', at), key.size());
        auto& child = node->children[key.substr(at, slash - at)];
        if (!child) child = std::make_unique<Node>();
        node = child.get();
        at = slash + 1;
    }
    node->value = std::move(value);
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

std::string configuration(const nixl_interface::Parameters& parameters, const std::string& agent) {
    Node root;
    if (std::getenv("POLYRAIL_LISTEN") == nullptr) put(root, "listen", json_text("127.0.0.1:0"));
    put(root, "name", json_text(name_of_engine(agent)));
    for (const auto& [key, text] : parameters) put(root, key, value(key, text));
    return root.json();
}

}  // namespace polyrail_nixl
