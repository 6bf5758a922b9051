package wire

// Reaction is what a requester does about a refused packet.
type Reaction uint8

// Reactions.
const (
	// Resend: send the packet again later. RNR after the timer in the block, "later" after an RTT, "no QP" after
	// the QP's timeout, one try of its retry_cnt.
	Resend Reaction = iota
	// Fail: the request fails, and with it the QP, once everything before it is done.
	Fail
	// Ignore: advice only.
	Ignore
)

// String returns the reaction's name.
func (r Reaction) String() string {
	switch r {
	case Resend:
		return "resend"
	case Fail:
		return "fail"
	case Ignore:
		return "ignore"
	}
	return unknown("reaction", uint32(r))
}

// The range of a refusal code says the reaction, so that codes of later versions are obeyed as well.
const (
	refuseFailFrom   = 0x40
	refuseIgnoreFrom = 0x80
)

// Reaction returns what the requester has to do about a refusal with this code.
//
// = MR-WIRE-075
func (c RefusalCode) Reaction() Reaction {
	switch {
	case c < refuseFailFrom:
		return Resend
	case c < refuseIgnoreFrom:
		return Fail
	}
	return Ignore
}
