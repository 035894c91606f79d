// Loads OpenSSL 3 at run time, for TLS on the sockets of lanes. Its headers are not needed: the types are opaque, and
// the numbers below are part of its binary interface.
#pragma once

#include "shim/library.hpp"

#include <cstddef>
#include <cstdint>

struct bio_method_st;
struct bio_st;
struct evp_pkey_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct ssl_st;
struct x509_st;
struct x509_store_st;

namespace zerohop::shim {

inline constexpr int kSslErrorWantRead = 2;
inline constexpr int kSslErrorWantWrite = 3;
inline constexpr int kSslVerifyPeer = 1;
inline constexpr int kSslFailWithoutPeerCertificate = 2;
inline constexpr int kSslSetLeastVersion = 123;
inline constexpr int kSslSetMostVersion = 124;
inline constexpr long kTls13 = 0x0304;
inline constexpr int kKeyUpdateNotRequested = 0;
inline constexpr int kEd25519 = 1087;
inline constexpr int kSslSetServerName = 55;
inline constexpr int kServerNameOfHost = 0;

struct OpenSsl {
    const ssl_method_st* (*method)();
    ssl_ctx_st* (*context_new)(const ssl_method_st*);
    void (*context_free)(ssl_ctx_st*);
    long (*context_control)(ssl_ctx_st*, int, long, void*);
    int (*set_tickets)(ssl_ctx_st*, size_t);
    void (*set_verify)(ssl_ctx_st*, int, int (*)(int, void*));
    int (*use_certificate)(ssl_ctx_st*, x509_st*);
    int (*use_key)(ssl_ctx_st*, evp_pkey_st*);
    x509_store_st* (*trusted)(const ssl_ctx_st*);
    int (*trust)(x509_store_st*, x509_st*);
    x509_st* (*read_certificate)(x509_st**, const unsigned char**, long);
    void (*certificate_free)(x509_st*);
    evp_pkey_st* (*raw_key)(int, void*, const unsigned char*, size_t);
    void (*key_free)(evp_pkey_st*);
    ssl_st* (*session_new)(ssl_ctx_st*);
    void (*session_free)(ssl_st*);
    long (*session_control)(ssl_st*, int, long, void*);
    const char* (*server_name)(const ssl_st*, int);
    void (*will_dial)(ssl_st*);
    void (*will_listen)(ssl_st*);
    void (*set_bios)(ssl_st*, bio_st* in, bio_st* out);
    int (*shake_hands)(ssl_st*);
    int (*read)(ssl_st*, void*, int);
    int (*write)(ssl_st*, const void*, int);
    int (*pending)(const ssl_st*);
    int (*error)(const ssl_st*, int);
    int (*key_update)(ssl_st*, int);
    const bio_method_st* (*memory)();
    bio_st* (*bio_new)(const bio_method_st*);
    void (*bio_free)(bio_st*);
    int (*bio_read)(bio_st*, void*, int);
    int (*bio_write)(bio_st*, const void*, int);
    size_t (*bio_pending)(bio_st*);
    void (*clear_errors)();
};

[[nodiscard]] const Loaded<OpenSsl>& openssl();

} // namespace zerohop::shim
