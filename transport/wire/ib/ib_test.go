package ib

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"testing"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/internal/rng"
	"github.com/metaroce/metaroce/transport/wire"
)

type vector struct{ Name, IP, UDP, Rest, ICRC string }

// vectors are the golden packets: computed three ways, one of them the kernel's.
func vectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("../../../spec/vectors/rocev2-icrc.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Vectors []vector }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return f.Vectors
}

func (v vector) packet(t testing.TB) *pkt.Packet {
	t.Helper()
	un := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	ip, udp := un(v.IP), un(v.UDP)
	p := &pkt.Packet{Data: append(un(v.Rest), un(v.ICRC)...), SrcPort: binary.BigEndian.Uint16(udp)}
	if len(ip) == 20 {
		p.Src, p.Dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		p.TOS, p.TTL, p.IPID, p.NoDF = ip[1], ip[8], binary.BigEndian.Uint16(ip[4:]), ip[6]&0x40 == 0
		return p
	}
	p.Src, p.Dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	w := binary.BigEndian.Uint32(ip)
	p.TOS, p.FlowLabel, p.TTL = uint8(w>>20), w&0xfffff, ip[7]
	return p
}

func TestVectors(t *testing.T) {
	var s Summer
	for _, v := range vectors(t) {
		p := v.packet(t)
		if !s.Good(p) {
			t.Errorf("%s: ICRC refused", v.Name)
		}
		want := bytes.Clone(p.Data)
		clear(p.Data[len(p.Data)-ICRCLen:])
		if s.Seal(p); !bytes.Equal(p.Data, want) {
			t.Errorf("%s: sealed %x, want %x", v.Name, p.Data, want)
		}
		var h Header
		payload, d := Decode(p.Data, &h)
		if d != Accepted {
			t.Fatalf("%s: %v", v.Name, d)
		}
		switch h.Op {
		case SendOnly:
			if string(payload) != "hello" || !h.SE || h.Pad != 3 || h.PKey != PKeyDefault || h.DestQP != 0x11 || !h.AckReq || h.PSN != 0x123456 {
				t.Errorf("%+v %q", h, payload)
			}
		case Ack:
			if h.DestQP != 0x12 || h.Syndrome != AckNoCredits || h.MSN != 1 || h.PSN != 0x123456 || len(payload) != 0 {
				t.Errorf("%+v", h)
			}
		default:
			t.Errorf("%v", h.Op)
		}
		for i := range p.Data { // every bit counts but those of the variant byte
			p.Data[i] ^= 4
			if s.Good(p) != (i == offECN) {
				t.Errorf("%s: byte %d", v.Name, i)
			}
			p.Data[i] ^= 4
		}
		p.SrcPort++
		if s.Good(p) {
			t.Errorf("%s: source port does not count", v.Name)
		}
	}
}

// TestSumAgrees holds Summer against wire.IBTA over the header that PutGRH writes.
func TestSumAgrees(t *testing.T) {
	r := rng.New(1, "sum")
	var s Summer
	for i := range 400 {
		p := &pkt.Packet{Data: make([]byte, MinPacket+4*r.IntN(300)), SrcPort: uint16(r.Uint32()), TOS: uint8(r.Uint32()), TTL: uint8(r.Uint32()),
			FlowLabel: r.Uint32() & 0xfffff, IPID: uint16(r.Uint32()), NoDF: i&2 != 0}
		for j := range p.Data {
			p.Data[j] = byte(r.Uint32())
		}
		var a, b [16]byte
		binary.BigEndian.PutUint64(a[:], r.Uint64())
		binary.BigEndian.PutUint64(b[:], r.Uint64())
		p.Src, p.Dst = netip.AddrFrom16(a), netip.AddrFrom16(b)
		if i&1 != 0 {
			p.Src, p.Dst = netip.AddrFrom4([4]byte(a[:])), netip.AddrFrom4([4]byte(b[:]))
		}
		var grh [GRHLen]byte
		PutGRH(grh[:], p)
		ip := grh[:]
		if i&1 != 0 {
			ip = grh[20:]
			if headerSum(ip) != 0 {
				t.Fatal("IPv4 header checksum")
			}
		}
		udp := make([]byte, 8)
		binary.BigEndian.PutUint16(udp, p.SrcPort)
		binary.BigEndian.PutUint16(udp[2:], 4791)
		binary.BigEndian.PutUint16(udp[4:], uint16(8+len(p.Data)))
		s.Seal(p)
		n := len(p.Data) - ICRCLen
		if want := wire.IBTA(ip, udp, p.Data[:n]); binary.LittleEndian.Uint32(p.Data[n:]) != want {
			t.Fatalf("packet %d: %x, want %08x", i, p.Data[n:], want)
		}
	}
}

func TestDrops(t *testing.T) {
	ok := make([]byte, 64)
	h := Header{Op: SendOnly, PKey: PKeyDefault}
	h.Put(ok)
	with := func(i int, v byte) []byte {
		b := bytes.Clone(ok)
		b[i] = v
		return b
	}
	for _, x := range []struct {
		b    []byte
		want Drop
	}{
		{ok, Accepted}, {nil, DropLength}, {ok[:12], DropLength}, {ok[:63], DropLength}, {with(1, 1), DropTVer},
		{with(0, 0x15), DropOpcode}, {with(0, 0xC0), DropOpcode}, {with(0, 0x2C), DropOpcode}, {with(0, 0x40), DropOpcode}, {with(0, 0xB5), DropOpcode}, {with(0, 0x20), Accepted}, {with(0, 0xA0)[:16], DropExtension},
		{with(0, byte(WriteOnly))[:28], DropExtension}, {with(1, 0x30)[:16], DropPad}, {with(0, byte(Ack)), DropPayload},
	} {
		var h Header
		if _, d := Decode(x.b, &h); d != x.want {
			t.Errorf("%x: %v, want %v", x.b, d, x.want)
		}
	}
	var s Summer
	p := &pkt.Packet{Data: ok}
	if s.Good(p) {
		t.Error("ICRC without addresses")
	}
	if DropICRC.String() != "icrc" || Drop(99).String() == "" || Opcode(0x15).String() != "opcode(0x15)" {
		t.Error("names")
	}
}

// FuzzDecode: whatever is accepted comes out of Put the same.
func FuzzDecode(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.packet(f).Data)
	}
	for o := range 256 {
		h := Header{Op: Opcode(o), PKey: PKeyDefault, VA: 1, RKey: 2, Len: 3, Imm: 4, Inv: 5, QKey: 6, SrcQP: 7, Swap: 8, Compare: 9, Result: 10, Syndrome: 11, MSN: 12}
		b := make([]byte, h.Size()+ICRCLen)
		h.Put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		payload, d := Decode(b, &h)
		if d != Accepted {
			if int(d) >= NumDrops || payload != nil {
				t.Fatalf("drop %v with payload %x", d, payload)
			}
			return
		}
		out := make([]byte, len(b))
		n := h.Put(out)
		if n != h.Size() || n+len(payload)+int(h.Pad)+ICRCLen != len(b) {
			t.Fatalf("Put %d, Size %d, payload %d, pad %d, packet %d", n, h.Size(), len(payload), h.Pad, len(b))
		}
		copy(out[n:], payload)
		var again Header
		p2, d := Decode(out, &again)
		if d != Accepted || again != h || !bytes.Equal(p2, payload) {
			t.Fatalf("%v\n%+v\n%+v", d, h, again)
		}
	})
}

func TestAllocs(t *testing.T) {
	p := vectors(t)[0].packet(t)
	var s Summer
	var h Header
	if n := testing.AllocsPerRun(100, func() {
		Decode(p.Data, &h)
		h.Put(p.Data)
		s.Seal(p)
		if !s.Good(p) {
			t.Fatal("ICRC")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRNRTimes(t *testing.T) {
	if RNRTime(0).Micros() != 655360 || RNRTime(12).Micros() != 640 || RNRTime(31).Micros() != 491520 || Syndrome(0x2E).Wait().Micros() != 1280 {
		t.Error("RNR timer codes")
	}
	for s := range 256 {
		n := 0
		for _, b := range []bool{Syndrome(s).IsAck(), Syndrome(s).IsRNR(), Syndrome(s).IsNak()} {
			if b {
				n++
			}
		}
		if want := 1; (s&0x60 == 0x40) == (n == want) {
			t.Errorf("syndrome %02x is %d kinds", s, n)
		}
	}
}
