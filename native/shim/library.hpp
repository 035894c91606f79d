// Opens a vendor's library at run time: no build needs it, and a machine without it reports that.
#pragma once

#include <string>

namespace zerohop::shim {

class Library {
public:
    // Opens the first of `names` that exists; it stays open for the life of the process.
    Library(const char* const* names, size_t count);

    explicit operator bool() const { return handle_ != nullptr; }
    // Returns the loader's error if no library was found, or the required symbol that is missing.
    const std::string& why_not() const { return why_not_; }

    // Returns null if the library has no such symbol.
    [[nodiscard]] void* symbol(const char* name) const;
    // Looks up a required symbol: if it is missing, the whole library is unusable.
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
