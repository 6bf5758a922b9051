package ether

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

var (
	a4, b4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	a6, b6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
)

// What plain RoCEv2's ICRC covers of the IP header, and a UD receive shows, comes through.
func TestHeaderFields(t *testing.T) {
	for _, q := range []pkt.Packet{
		{Src: a4, Dst: b4, TOS: 0xb9, TTL: 7, SrcPort: 9},
		{Src: a6, Dst: b6, TOS: 0xb9, TTL: 1, FlowLabel: 0xabcde, SrcPort: 9},
		{Src: a4, Dst: b4}, {Src: a6, Dst: b6},
	} {
		f := make([]byte, HeadersLen(q.Dst)+20)
		PutHeaders(f[:HeadersLen(q.Dst)], MAC{2}, MAC{4}, &q, 20, false)
		h := Parse(f, true)
		want := q
		if want.TTL == 0 {
			want.TTL = 64
		}
		if got := h.Packet(); got.Src != want.Src || got.Dst != want.Dst || got.TOS != want.TOS || got.TTL != want.TTL ||
			got.FlowLabel != want.FlowLabel || got.IPID != 0 || got.NoDF || got.SrcPort != want.SrcPort {
			t.Errorf("%+v, want %+v", got, want)
		}
		if q.Dst.Is4() { // a sender with an ID of its own and without DF
			ip := f[HeadLen:]
			ip[4], ip[5], ip[6], ip[10], ip[11] = 0x12, 0x34, 0, 0, 0
			binary.BigEndian.PutUint16(ip[10:], ^Fold(Add(0, ip[:IPv4Len])))
			h = Parse(f, true)
			if got := h.Packet(); got.IPID != 0x1234 || !got.NoDF {
				t.Errorf("%+v", got)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	for _, d := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
		for _, n := range []int{1, 100, 4200} {
			q := &pkt.Packet{Src: d[0], Dst: d[1], SrcPort: 0xc123, TOS: 0x2e<<2 | 2}
			f := make([]byte, HeadersLen(d[1])+n)
			PutHeaders(f[:HeadersLen(d[1])], MAC{2}, MAC{4}, q, n, false)
			p := Parse(f, true)
			if p.Kind != RoCE || p.Src != q.Src || p.Dst != q.Dst || p.SrcPort != q.SrcPort || p.TOS != q.TOS || p.End-p.Data != n || p.Data != HeadersLen(d[1]) {
				t.Errorf("%+v", p)
			}
			//= MR-WIRE-001 MR-WIRE-002
			if u := f[HeadersLen(d[1])-UDPLen:]; binary.BigEndian.Uint16(u[2:]) != 4791 || binary.BigEndian.Uint16(u) != q.SrcPort {
				t.Errorf("UDP header %x", u[:UDPLen])
			}
			//= MR-WIRE-004
			if ip := f[HeadLen:]; d[1].Is4() && binary.BigEndian.Uint16(ip[6:]) != 0x4000 {
				t.Errorf("flags and fragment offset %x", ip[6:8])
			}
			for cut := range len(f) { // a frame cut short is never RoCE
				if p := Parse(f[:cut], true); p.Kind == RoCE {
					t.Fatalf("cut at %d of %d", cut, len(f))
				}
			}
		}
	}
}

// near answers, learns, asks again, gives up, and stays within its bounds.
func TestNeighbours(t *testing.T) {
	var n Neighbours
	var out []Parsed
	var raw [][]byte
	n.Init(MAC{2}, 100, func(f []byte) {
		out = append(out, Parse(f, true))
		raw = append(raw, append([]byte(nil), f...))
	})
	n.SetAddrs([]netip.Addr{a4, a6})
	if len(out) != 2 || out[0].Kind != ARP || out[1].Kind != ND {
		t.Fatalf("announcements %+v", out)
	}
	q := pkt.Packet{Data: make([]byte, 50), Src: a4, Dst: b4, SrcPort: 0xc001, TOS: pkt.ECT0}
	e := n.Lookup(1000, a4, b4)
	for i := range HeldEach + 1 {
		if n.Keep(1000, e, &q) != (i < HeldEach) {
			t.Error("kept", i)
		}
	}
	if e.Known || len(out) != 3 {
		t.Error("first packet", e, len(out))
	}
	if n.Lookup(2000, a4, b4); len(out) != 3 {
		t.Error("asks for every packet")
	}
	reply := make([]byte, arpLen)
	copy(reply, raw[2][HeadLen:])
	binary.BigEndian.PutUint16(reply[6:], arpReply)
	copy(reply[8:], []byte{6, 6, 6, 6, 6, 6})
	x, y := b4.As4(), a4.As4()
	copy(reply[14:], x[:])
	copy(reply[24:], y[:])
	got, done := n.HandleARP(3000, reply)
	if got != e || done || e.MAC != (MAC{6, 6, 6, 6, 6, 6}) || !e.Known || len(e.Held) != HeldEach || len(e.Held[0].Data) != 50 {
		t.Errorf("%+v %v", got, done)
	}
	if n.Drop(e) != HeldEach || len(n.spare) != heldMax {
		t.Error("spare", len(n.spare))
	}
	if e = n.Lookup(4000, a4, b4); !e.Known || len(out) != 3 {
		t.Error("known, and asked")
	}
	// Confirmed too long ago: still used while it is asked for, then given up.
	at := mono.Time(3000).Add(reachable + 1)
	for i := range 5 {
		e = n.Lookup(at, a4, b4)
		if e.Known != (i < asksMax) {
			t.Errorf("ask %d: known %v", i, e.Known)
		}
		at = at.Add(askAgain)
	}
	if len(out) != 3+5 {
		t.Error("asked", len(out)-3, "times")
	}
	for i := range 2 * neighMax {
		n.Lookup(at, a4, netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}))
	}
	if len(n.table) > neighMax {
		t.Error("table", len(n.table))
	}
	for i := range 2 * heldMax {
		q.Dst = netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		n.Keep(at, n.Lookup(at, a4, q.Dst), &q)
	}
	if n.Tick(at.Add(heldFor)); len(n.spare) != heldMax {
		t.Error("kept packets", len(n.spare))
	}
	// Strangers are not remembered unless they ask for us.
	copy(reply[14:], []byte{10, 77, 0, 1})
	copy(reply[24:], []byte{10, 77, 0, 2})
	if e, _ := n.HandleARP(at, reply); e != nil {
		t.Error("remembered a stranger")
	}
}
