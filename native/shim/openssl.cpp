#include "shim/openssl.hpp"

namespace zerohop::shim {

const Loaded<OpenSsl>& openssl() {
    // libcrypto comes with it, and is searched, too.
    static const Loaded<OpenSsl> once({"libssl.so.3"}, [](Library& library, OpenSsl& table) {
        library.need(table.method, "TLS_method");
        library.need(table.context_new, "SSL_CTX_new");
        library.need(table.context_free, "SSL_CTX_free");
        library.need(table.context_control, "SSL_CTX_ctrl");
        library.need(table.set_tickets, "SSL_CTX_set_num_tickets");
        library.need(table.set_verify, "SSL_CTX_set_verify");
        library.need(table.use_certificate, "SSL_CTX_use_certificate");
        library.need(table.use_key, "SSL_CTX_use_PrivateKey");
        library.need(table.trusted, "SSL_CTX_get_cert_store");
        library.need(table.trust, "X509_STORE_add_cert");
        library.need(table.read_certificate, "d2i_X509");
        library.need(table.certificate_free, "X509_free");
        library.need(table.raw_key, "EVP_PKEY_new_raw_private_key");
        library.need(table.key_free, "EVP_PKEY_free");
        library.need(table.session_new, "SSL_new");
        library.need(table.session_free, "SSL_free");
        library.need(table.session_control, "SSL_ctrl");
        library.need(table.server_name, "SSL_get_servername");
        library.need(table.will_dial, "SSL_set_connect_state");
        library.need(table.will_listen, "SSL_set_accept_state");
        library.need(table.set_bios, "SSL_set_bio");
        library.need(table.shake_hands, "SSL_do_handshake");
        library.need(table.read, "SSL_read");
        library.need(table.write, "SSL_write");
        library.need(table.pending, "SSL_pending");
        library.need(table.error, "SSL_get_error");
        library.need(table.key_update, "SSL_key_update");
        library.need(table.memory, "BIO_s_mem");
        library.need(table.bio_new, "BIO_new");
        library.need(table.bio_free, "BIO_free_all");
        library.need(table.bio_read, "BIO_read");
        library.need(table.bio_write, "BIO_write");
        library.need(table.bio_pending, "BIO_ctrl_pending");
        library.need(table.clear_errors, "ERR_clear_error");
    });
    return once;
}

} // namespace zerohop::shim
