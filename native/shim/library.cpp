#include "shim/library.hpp"

#include <dlfcn.h>

namespace zerohop::shim {

Library::Library(std::initializer_list<const char*> names) {
    for (const char* const name : names) {
        // RTLD_LOCAL keeps its symbols private: another version of the library may be in this process.
        handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) {
            name_ = name;
            return;
        }
        if (const char* said = dlerror(); said != nullptr && why_not_.empty()) {
            why_not_ = said;
        }
    }
}

void* Library::symbol(const char* name) const {
    return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

void Library::lacks(const char* name) {
    handle_ = nullptr; // not closed: something of the library may be in use
    why_not_ = name_ + " has no " + name + ": it is too old";
}

} // namespace zerohop::shim
