// Package groups is the set of multicast groups that a wire's NIC is in, asked for every packet to a group that arrives.
package groups

import "net/netip"

// Set holds groups. The zero value is empty.
type Set struct{ m map[netip.Addr]struct{} }

// Replace makes the set these groups and no others.
func (s *Set) Replace(list []netip.Addr) {
	if s.m == nil {
		s.m = make(map[netip.Addr]struct{}, len(list))
	}
	clear(s.m)
	for _, g := range list {
		s.m[g] = struct{}{}
	}
}

// Has reports whether a is one of them.
func (s *Set) Has(a netip.Addr) bool {
	_, ok := s.m[a]
	return ok
}

// Empty reports whether there are none.
func (s *Set) Empty() bool { return len(s.m) == 0 }
