// A vendor's library, opened at run time: the build needs it nowhere, and a machine without it says so.
#pragma once

#include <string>

namespace zerohop::shim {

class Library {
public:
    // Opens the first of `names` that is there; it stays open for the life of the process.
    Library(const char* const* names, size_t count);

    explicit operator bool() const { return handle_ != nullptr; }
    // What the loader said where none was there, and the symbols that were asked for in vain.
    const std::string& why_not() const { return why_not_; }

    // Null where the library has no such symbol.
    [[nodiscard]] void* symbol(const char* name) const;
    // As symbol(); one that is missing makes the whole library unusable.
    template <class F> void need(F*& function, const char* name) {
        function = reinterpret_cast<F*>(symbol(name));
        if (function == nullptr && handle_ != nullptr) {
            lacks(name);
        }
    }
    template <class F> void may_have(F*& function, const char* name) const {
        function = reinterpret_cast<F*>(symbol(name));
    }

private:
    void lacks(const char* name);

    void* handle_ = nullptr;
    std::string name_;
    std::string why_not_;
};

} // namespace zerohop::shim
