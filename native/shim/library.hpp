// Opens a vendor's library at run time: no build needs it, and a machine without it reports that.
#pragma once

#include <initializer_list>
#include <string>

namespace zerohop::shim {

class Library {
public:
    // Opens the first of `names` that exists; it stays open for the life of the process.
    Library(std::initializer_list<const char*> names);

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

// A library's functions as a table, which `find` fills with need() and may_have().
template <class Table> class Loaded {
public:
    Loaded(std::initializer_list<const char*> names, void (*find)(Library&, Table&)) : library_(names) {
        find(library_, table_);
    }
    // Null if the library is missing or too old; `why_not` then says why.
    [[nodiscard]] const Table* get() const { return library_ ? &table_ : nullptr; }
    const Table& operator*() const { return table_; }
    const Table* operator->() const { return &table_; }
    explicit operator bool() const { return static_cast<bool>(library_); }
    [[nodiscard]] const std::string& why_not() const { return library_.why_not(); }

private:
    Library library_;
    Table table_{};
};

} // namespace zerohop::shim
