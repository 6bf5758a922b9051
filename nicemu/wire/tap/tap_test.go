package tap

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// Bytes from the wire never panic, whatever they claim.
func FuzzFrame(f *testing.F) {
	for _, d := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
		q := &pkt.Packet{Src: d[0], Dst: d[1], SrcPort: 7}
		b := make([]byte, headerLen(d[1])+40)
		putHeaders(b[:headerLen(d[1])], mac{2}, mac{4}, q, 40, false)
		f.Add(b, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		f.Add(b, []byte{1, 5, 42, 0, 10, 0, 34, 0, 6, 0})
	}
	var frames [][]byte
	n := neighbours{}
	n.init(mac{2}, 100, func(b []byte) { frames = append(frames, append([]byte(nil), b...)) })
	n.setAddrs([]netip.Addr{a4, a6})
	n.arp(arpRequest, broadcast, mac{}, b4, a4)
	n.solicit(b6, a6)
	for _, b := range frames {
		f.Add(b, []byte{1, 0, 0, 0, 0, 0, 14, 0, 2, 0})
	}
	f.Fuzz(func(t *testing.T, frame, vnet []byte) {
		none := func(int, []unix.Iovec) unix.Errno { return 0 }
		p := &Port{dev: &Device{fd: -1, vnet: len(vnet) == vnetHdrLen, writev: none}, mtu: 1500}
		p.near.init(mac{2}, 1500, func([]byte) {})
		p.near.setAddrs([]netip.Addr{a4, a6})
		p.rx.init()
		if len(vnet) != vnetHdrLen {
			vnet = nil
		}
		if len(frame) > readMax-vnetHdrLen {
			return
		}
		b := p.rx.arena[vnetHdrLen:][:copy(p.rx.arena[vnetHdrLen:], frame)]
		var q pkt.Packet
		if p.handle(5, b, vnet, &q) && q.Kind == pkt.RoCE {
			for n := len(q.Data); p.rx.pending(); n += len(q.Data) {
				p.nextSegment(&q)
				if len(q.Data) == 0 || n > len(frame) {
					t.Fatal("segments")
				}
			}
		}
		p.near.tick(mono.Time(10 * mono.Second))
	})
}

// What plain RoCEv2's ICRC covers of the IP header, and a UD receive shows, comes through.
func TestHeaderFields(t *testing.T) {
	for _, q := range []pkt.Packet{
		{Src: a4, Dst: b4, TOS: 0xb9, TTL: 7, SrcPort: 9},
		{Src: a6, Dst: b6, TOS: 0xb9, TTL: 1, FlowLabel: 0xabcde, SrcPort: 9},
		{Src: a4, Dst: b4}, {Src: a6, Dst: b6},
	} {
		f := make([]byte, headerLen(q.Dst)+20)
		putHeaders(f[:headerLen(q.Dst)], mac{2}, mac{4}, &q, 20, false)
		h := parse(f, true)
		want := q
		if want.TTL == 0 {
			want.TTL = 64
		}
		if got := h.packet(); got.Src != want.Src || got.Dst != want.Dst || got.TOS != want.TOS || got.TTL != want.TTL ||
			got.FlowLabel != want.FlowLabel || got.IPID != 0 || got.NoDF || got.SrcPort != want.SrcPort {
			t.Errorf("%+v, want %+v", got, want)
		}
		if q.Dst.Is4() { // a sender with an ID of its own and without DF
			ip := f[etherLen:]
			ip[4], ip[5], ip[6], ip[10], ip[11] = 0x12, 0x34, 0, 0, 0
			binary.BigEndian.PutUint16(ip[10:], ^fold(add(0, ip[:ipv4Len])))
			h = parse(f, true)
			if got := h.packet(); got.IPID != 0x1234 || !got.NoDF {
				t.Errorf("%+v", got)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	for _, d := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
		for _, n := range []int{1, 100, 4200} {
			q := &pkt.Packet{Src: d[0], Dst: d[1], SrcPort: 0xc123, TOS: 0x2e<<2 | 2}
			f := make([]byte, headerLen(d[1])+n)
			putHeaders(f[:headerLen(d[1])], mac{2}, mac{4}, q, n, false)
			p := parse(f, true)
			if p.kind != frameRoCE || p.src != q.Src || p.dst != q.Dst || p.srcPort != q.SrcPort || p.tos != q.TOS || p.end-p.data != n || p.data != headerLen(d[1]) {
				t.Errorf("%+v", p)
			}
			//= MR-WIRE-001 MR-WIRE-002
			if u := f[headerLen(d[1])-udpLen:]; binary.BigEndian.Uint16(u[2:]) != 4791 || binary.BigEndian.Uint16(u) != q.SrcPort {
				t.Errorf("UDP header %x", u[:udpLen])
			}
			//= MR-WIRE-004
			if ip := f[etherLen:]; d[1].Is4() && binary.BigEndian.Uint16(ip[6:]) != 0x4000 {
				t.Errorf("flags and fragment offset %x", ip[6:8])
			}
			for cut := range len(f) { // a frame cut short is never RoCE
				if p := parse(f[:cut], true); p.kind == frameRoCE {
					t.Fatalf("cut at %d of %d", cut, len(f))
				}
			}
		}
	}
}

// near answers, learns, asks again, gives up, and stays within its bounds.
func TestNeighbours(t *testing.T) {
	var n neighbours
	var out []parsed
	var raw [][]byte
	n.init(mac{2}, 100, func(f []byte) {
		out = append(out, parse(f, true))
		raw = append(raw, append([]byte(nil), f...))
	})
	n.setAddrs([]netip.Addr{a4, a6})
	if len(out) != 2 || out[0].kind != frameARP || out[1].kind != frameND {
		t.Fatalf("announcements %+v", out)
	}
	q := packet(1, 50, a4, b4)
	e := n.lookup(1000, a4, b4)
	for i := range heldEach + 1 {
		if n.keep(1000, e, &q) != (i < heldEach) {
			t.Error("kept", i)
		}
	}
	if e.known || len(out) != 3 {
		t.Error("first packet", e, len(out))
	}
	if n.lookup(2000, a4, b4); len(out) != 3 {
		t.Error("asks for every packet")
	}
	reply := make([]byte, arpLen)
	copy(reply, raw[2][etherLen:])
	binary.BigEndian.PutUint16(reply[6:], arpReply)
	copy(reply[8:], []byte{6, 6, 6, 6, 6, 6})
	x, y := b4.As4(), a4.As4()
	copy(reply[14:], x[:])
	copy(reply[24:], y[:])
	got, done := n.handleARP(3000, reply)
	if got != e || done || e.mac != (mac{6, 6, 6, 6, 6, 6}) || !e.known || len(e.held) != heldEach || len(e.held[0].Data) != 50 {
		t.Errorf("%+v %v", got, done)
	}
	if n.drop(e) != heldEach || len(n.spare) != heldMax {
		t.Error("spare", len(n.spare))
	}
	if e = n.lookup(4000, a4, b4); !e.known || len(out) != 3 {
		t.Error("known, and asked")
	}
	// Confirmed too long ago: still used while it is asked for, then given up.
	at := mono.Time(3000).Add(reachable + 1)
	for i := range 5 {
		e = n.lookup(at, a4, b4)
		if e.known != (i < asksMax) {
			t.Errorf("ask %d: known %v", i, e.known)
		}
		at = at.Add(askAgain)
	}
	if len(out) != 3+5 {
		t.Error("asked", len(out)-3, "times")
	}
	for i := range 2 * neighMax {
		n.lookup(at, a4, netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}))
	}
	if len(n.table) > neighMax {
		t.Error("table", len(n.table))
	}
	for i := range 2 * heldMax {
		q.Dst = netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		n.keep(at, n.lookup(at, a4, q.Dst), &q)
	}
	if n.tick(at.Add(heldFor)); len(n.spare) != heldMax {
		t.Error("kept packets", len(n.spare))
	}
	// Strangers are not remembered unless they ask for us.
	copy(reply[14:], []byte{10, 77, 0, 1})
	copy(reply[24:], []byte{10, 77, 0, 2})
	if e, _ := n.handleARP(at, reply); e != nil {
		t.Error("remembered a stranger")
	}
}

// A kernel that refuses super-packets gets single frames, and every packet goes once.
func TestTrainsRefused(t *testing.T) {
	p := &Port{dev: &Device{fd: 1 << 20, vnet: true, trains: true}, mtu: 1500}
	p.near.init(mac{2}, 1500, func([]byte) {})
	p.near.setAddrs([]netip.Addr{a4})
	p.near.learn(0, b4, mac{4}, true)
	frames := 0
	p.dev.writev = func(_ int, v []unix.Iovec) unix.Errno {
		if len(v) > 2 {
			return unix.EINVAL
		}
		frames++
		return 0
	}
	var ps []pkt.Packet
	for id := range uint32(10) {
		ps = append(ps, packet(id, 100, a4, b4))
	}
	if n := p.TxBurst(0, ps); n != 10 || frames != 10 || p.stats.TxPackets != 10 || p.dev.trains {
		t.Error(n, frames, p.stats)
	}
}

func TestNoAllocation(t *testing.T) {
	for _, m := range modes[:2] {
		t.Run(m.name, func(t *testing.T) {
			space(t, 4300)
			m.a.MTU, m.b.MTU = 4300, 4300
			a, b := plug(t, "ta", m.a, a4, a6), plug(t, "tb", m.b, b4, b6)
			meet(t, a, b)
			var out []pkt.Packet
			for id := range uint32(10) {
				out = append(out, packet(id, 1000, a4, b4))
			}
			out = append(out, pkt.Packet{Kind: pkt.Ethernet, Data: make([]byte, 60)})
			var in [pkt.Burst]pkt.Packet
			T := now()
			if n := testing.AllocsPerRun(100, func() {
				a.TxBurst(T, out)
				for b.RxBurst(T, in[:]) > 0 {
				}
				a.LinkUp()
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// One core does both ends and the bridge.
func BenchmarkWire(bm *testing.B) {
	for _, m := range modes[:3] {
		for _, size := range []int{1076, 4172} {
			for _, flows := range []int{1, 16} {
				bm.Run(fmt.Sprintf("%s/%d/flows=%d", m.name, size, flows), func(bm *testing.B) {
					space(bm, 4300)
					m.a.MTU, m.b.MTU = 4300, 4300
					a, b := plug(bm, "ta", m.a, a4, a6), plug(bm, "tb", m.b, b4, b6)
					meet(bm, a, b)
					var out, in [pkt.Burst]pkt.Packet
					for i := range out {
						out[i] = packet(uint32(i), size, a4, b4)
						out[i].SrcPort = uint16(0xc000 + i%flows)
					}
					bm.SetBytes(int64(size))
					bm.ResetTimer()
					got, sent := 0, 0
					for n := 0; n < bm.N; n += pkt.Burst {
						sent += a.TxBurst(1, out[:])
						for k := b.RxBurst(1, in[:]); k > 0; k = b.RxBurst(1, in[:]) {
							got += k
						}
					}
					bm.ReportMetric(float64(got)*float64(size)*8/1e9/bm.Elapsed().Seconds(), "Gbit/s")
					bm.ReportMetric(float64(got)/float64(sent), "arrived")
				})
			}
		}
	}
}
