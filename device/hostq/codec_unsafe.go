package hostq

import "unsafe"

// Plain is any fixed-size struct of this package: integers and byte arrays only, no padding, no pointers (the ABI
// test holds every one of them to that).
type Plain interface {
	Hdr | Hello | HelloReply | List | NIC | ListReply | Open | OpenReply | QueryPort | PortAttr | QueryGID |
		GIDEntry | Handle | DestroyReply | RegMR | RegMRReply | AllocMW | CreateCQ | CreateSRQ | CreateSRQReply | OpenXRCD | OpenQP | SRQAttr | CreateQP |
		CreateQPReply | ModifyQP | CreateAH | Mcast | CompEvent | AsyncEvent | SQE | RQE | CQE | SGE | Assist |
		CMSetup | CMCreate | CMAddrs | CMArg | CMOption | CMConn | CMInfo | CMEvent | ImportMRReply | DM | Share |
		Import | ImportReply | ModifyCQ
}

// Bytes is v's memory.
func Bytes[T Plain](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Size is sizeof(T).
func Size[T Plain]() int {
	var v T
	return int(unsafe.Sizeof(v))
}

// Decode copies a message into v. It reports false unless b has exactly v's size.
func Decode[T Plain](b []byte, v *T) bool {
	d := Bytes(v)
	if len(b) != len(d) {
		return false
	}
	copy(d, b)
	return true
}

// sges views a slice of SGE as bytes.
func sges(s []SGE) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
