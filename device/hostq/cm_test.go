package hostq

import (
	"maps"
	"reflect"
)

// Connection management's part of the header, for TestHeader.
func init() {
	maps.Copy(goStructs, map[string]reflect.Type{
		"mr_cm_setup": reflect.TypeFor[CMSetup](), "mr_cm_create": reflect.TypeFor[CMCreate](), "mr_cm_addr": reflect.TypeFor[CMAddr](),
		"mr_cm_addrs": reflect.TypeFor[CMAddrs](), "mr_cm_arg": reflect.TypeFor[CMArg](), "mr_cm_option": reflect.TypeFor[CMOption](),
		"mr_cm_param": reflect.TypeFor[CMParam](), "mr_cm_conn": reflect.TypeFor[CMConn](), "mr_cm_info": reflect.TypeFor[CMInfo](),
		"mr_cm_event": reflect.TypeFor[CMEvent](),
	})
	maps.Copy(goConsts, map[string]uint64{
		"MR_OP_CM_SETUP":           uint64(OpCMSetup),
		"MR_OP_CM_CREATE_CHANNEL":  uint64(OpCMCreateChannel),
		"MR_OP_CM_DESTROY_CHANNEL": uint64(OpCMDestroyChannel),
		"MR_OP_CM_GET_EVENT":       uint64(OpCMGetEvent),
		"MR_OP_CM_CREATE_ID":       uint64(OpCMCreateID),
		"MR_OP_CM_DESTROY_ID":      uint64(OpCMDestroyID),
		"MR_OP_CM_BIND":            uint64(OpCMBind),
		"MR_OP_CM_RESOLVE_ADDR":    uint64(OpCMResolveAddr),
		"MR_OP_CM_RESOLVE_ROUTE":   uint64(OpCMResolveRoute),
		"MR_OP_CM_QUERY":           uint64(OpCMQuery),
		"MR_OP_CM_LISTEN":          uint64(OpCMListen),
		"MR_OP_CM_CONNECT":         uint64(OpCMConnect),
		"MR_OP_CM_ACCEPT":          uint64(OpCMAccept),
		"MR_OP_CM_REJECT":          uint64(OpCMReject),
		"MR_OP_CM_ESTABLISH":       uint64(OpCMEstablish),
		"MR_OP_CM_DISCONNECT":      uint64(OpCMDisconnect),
		"MR_OP_CM_QP_ATTR":         uint64(OpCMQPAttr),
		"MR_OP_CM_SET_OPTION":      uint64(OpCMSetOption),
		"MR_OP_CM_MIGRATE":         uint64(OpCMMigrate),
		"MR_OP_CM_JOIN":            uint64(OpCMJoin),
		"MR_OP_CM_LEAVE":           uint64(OpCMLeave),
	})
}
