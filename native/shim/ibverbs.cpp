#include "shim/ibverbs.hpp"

namespace zerohop::shim {

const Loaded<IbVerbs>& ibverbs() {
    static const Loaded<IbVerbs> once({"libibverbs.so.1", "libibverbs.so"}, [](Library& library, IbVerbs& table) {
        library.need(table.get_device_list, "ibv_get_device_list");
        library.need(table.free_device_list, "ibv_free_device_list");
        library.need(table.get_device_name, "ibv_get_device_name");
        library.need(table.open_device, "ibv_open_device");
        library.need(table.close_device, "ibv_close_device");
        library.need(table.query_device, "ibv_query_device");
        library.need(table.query_port, "ibv_query_port");
        library.need(table.query_gid, "ibv_query_gid");
        library.need(table.get_async_event, "ibv_get_async_event");
        library.need(table.ack_async_event, "ibv_ack_async_event");
        library.need(table.alloc_pd, "ibv_alloc_pd");
        library.need(table.dealloc_pd, "ibv_dealloc_pd");
        library.need(table.reg_mr, "ibv_reg_mr");
        library.may_have(table.reg_mr_iova2, "ibv_reg_mr_iova2");
        library.may_have(table.reg_dmabuf_mr, "ibv_reg_dmabuf_mr");
        library.need(table.dereg_mr, "ibv_dereg_mr");
        library.need(table.create_comp_channel, "ibv_create_comp_channel");
        library.need(table.destroy_comp_channel, "ibv_destroy_comp_channel");
        library.need(table.create_cq, "ibv_create_cq");
        library.need(table.destroy_cq, "ibv_destroy_cq");
        library.need(table.get_cq_event, "ibv_get_cq_event");
        library.need(table.ack_cq_events, "ibv_ack_cq_events");
        library.need(table.create_srq, "ibv_create_srq");
        library.need(table.destroy_srq, "ibv_destroy_srq");
        library.need(table.create_qp, "ibv_create_qp");
        library.need(table.modify_qp, "ibv_modify_qp");
        library.need(table.destroy_qp, "ibv_destroy_qp");
    });
    return once;
}

} // namespace zerohop::shim
