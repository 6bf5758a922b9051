package hostq

// Connection management; see the comments in mr_abi.h.

// CMSetup begins connection management.
type CMSetup struct {
	Hdr
	NICs [1008]byte
}

// CMCreate makes an ID.
type CMCreate struct {
	Hdr
	Channel uint32
	PS      uint32
	QPType  uint32
	Rsv     uint32
}

// CMAddr is an IP address and a port.
type CMAddr struct {
	Family uint16
	Port   uint16
	Rsv    uint32
	Addr   [16]byte
}

// CMAddrs is a request with addresses.
type CMAddrs struct {
	Hdr
	ID        uint32
	TimeoutMs uint32
	Src, Dst  CMAddr
}

// CMArg is a request with a number.
type CMArg struct {
	Hdr
	ID  uint32
	Arg uint32
}

// CMOption sets an option.
type CMOption struct {
	Hdr
	ID    uint32
	Level uint32
	Name  uint32
	Value uint32
}

// CMParam are the parameters of a connection.
type CMParam struct {
	QPN, QKey                                                   uint32
	ResponderResources, InitiatorDepth, FlowControl, RetryCount uint8
	RNRRetryCount, SRQ                                          uint8
	PrivateLen                                                  uint16
}

// CMConn connects, accepts or rejects.
type CMConn struct {
	Hdr
	ID          uint32
	Arg         uint32
	Param       CMParam
	PrivateData [256]byte
}

// CMInfo describes an ID.
type CMInfo struct {
	Hdr
	Src, Dst                             CMAddr
	SGID, DGID                           [16]byte
	GUID                                 uint64
	PS, QPType                           uint32
	PortNum, MTU, TrafficClass, HopLimit uint8
	Rsv                                  uint32
}

// CMEvent is an event.
type CMEvent struct {
	Hdr
	ID          uint32
	ListenID    uint32
	Event       uint32
	Status      int32
	Group       uint32
	Rsv         uint32
	Param       CMParam
	AH          AHAttr
	PrivateData [256]byte
}
