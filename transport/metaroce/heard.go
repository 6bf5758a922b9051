package metaroce

import "net/netip"

// Heard says what is known of a peer: whether it has answered, so that it speaks MetaRoCE, and otherwise how many HELLOs
// were sent to it since somebody here began to wait for it.
func (e *Engine) Heard(local, remote netip.Addr) (answered bool, tries int) {
	a := e.byAddr[addrPair{local, remote}]
	if a == nil {
		return false, 0
	}
	return a.state == assocUp || a.havePeer || a.haveCookie, a.helloTries
}
