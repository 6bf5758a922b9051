package cm

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

var update = flag.Bool("update", false, "write the golden files")

func checkGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%s differs (%v); go test -update writes it:\n%s", path, err, got)
	}
}

// TestLayout: fields are where the specification has them, counted from the beginning of the datagram.
func TestLayout(t *testing.T) {
	var b [MADLen]byte
	at := func(off int, want ...byte) {
		t.Helper()
		if !bytes.Equal(b[off:off+len(want)], want) {
			t.Errorf("at %d: % x, want % x", off, b[off:off+len(want)], want)
		}
	}
	m := Msg{Attr: REQ, TID: 0x0102030405060708, Local: 0xa1a2a3a4, Service: 0x0000000001060007, GUID: 0x1122334455667788, QPN: 0x123456, PSN: 0xabcdef, RespRes: 3, InitDepth: 4,
		RemoteTimeout: 20, Transport: 1, Flow: true, LocalTimeout: 19, Retry: 7, PKey: 0xffff, MTU: 5, RNR: 6, MaxRetries: 15, SRQ: true,
		Path: Path{LocalLID: 0xffff, RemoteLID: 0xffff, FlowLabel: 0xfffff, Rate: 3, TClass: 0x60, HopLimit: 64, SL: 5, AckTimeout: 14}}
	m.Path.Local[15], m.Path.Remote[15], m.Private[0], m.Private[91] = 1, 2, 0xee, 0xdd
	m.Put(&b)
	at(0, 1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10)
	at(24, 0xa1, 0xa2, 0xa3, 0xa4)
	at(24+8, 0, 0, 0, 0, 1, 6, 0, 7, 0x11)
	at(24+32, 0x12, 0x34, 0x56, 3)
	at(24+39, 4)
	at(24+43, 20<<3|1<<1|1, 0xab, 0xcd, 0xef, 19<<3|7, 0xff, 0xff, 5<<4|6, 15<<4|8, 0xff, 0xff, 0xff, 0xff)
	at(24+71, 1)
	at(24+87, 2, 0xff, 0xff, 0xf0, 3, 0x60, 64, 5<<4, 14<<3)
	at(24+140, 0xee)
	at(255, 0xdd)
	m = Msg{Attr: REP, Local: 1, Remote: 2, QPN: 0x123456, PSN: 0x654321, RespRes: 9, InitDepth: 8, AckDelay: 15, Flow: true, RNR: 7, SRQ: true}
	m.Put(&b)
	at(24+12, 0x12, 0x34, 0x56)
	at(24+20, 0x65, 0x43, 0x21, 0, 9, 8, 15<<3|1, 7<<5|0x10)
	m = Msg{Attr: REJ, Local: 1, Remote: 2, Which: 1, InfoLen: 8, Reason: 28}
	m.Put(&b)
	at(24+8, 1<<6, 8<<1, 0, 28)
}

// FuzzMAD: what is read is written as it was, apart from reserved bits; the manager survives whatever comes.
func FuzzMAD(f *testing.F) {
	r := rng.New(1, "mads")
	for a := range privateAt {
		m := Msg{Attr: a, Local: 5, Remote: 6, QPN: 7, MTU: 3, Service: service(PSTCP, 9)}
		putIPHeader(m.Private[:], netip.AddrPortFrom(addrOf(1), 1), netip.AddrPortFrom(addrOf(0), 9))
		var b [MADLen]byte
		m.Put(&b)
		f.Add(b[:])
		for range 4 {
			b[madHdr+r.IntN(MADLen-madHdr)] ^= byte(r.Uint32())
		}
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, n Msg
		if !Parse(b, &m) {
			return
		}
		var out [MADLen]byte
		m.Put(&out)
		if !Parse(out[:], &n) || m != n {
			t.Fatalf("%+v\n%+v", m, n)
		}
		hostile(t, b)
	})
}

// hostile gives a message to a manager in every state of an exchange.
func hostile(t *testing.T, b []byte) {
	w := newWorld(t, 1, 2)
	x, y := w.nodes[0], w.nodes[1]
	y.listen(9)
	y.listenAt(netip.IPv4Unspecified(), 9, PSUDP, qpUD)
	feed := func(n *node) {
		for _, src := range []netip.Addr{x.addr, y.addr} {
			n.m.HandleMAD(w.now, 0, src, n.addr, b)
		}
	}
	id := x.dial(y.addr, 9, PSTCP, qpRC, "")
	feed(x)
	feed(y)
	w.until(mono.Second, func() bool { return len(y.got) > 0 })
	feed(y)
	for _, e := range y.got {
		e.ID.Accept(w.now, Param{QPN: 4}, nil)
	}
	feed(x)
	w.until(mono.Second, func() bool { return len(x.got) > 0 })
	id.Establish(w.now)
	feed(x)
	feed(y)
	w.until(mono.Second, func() bool { return false })
	id.Destroy(w.now)
	feed(x)
	w.until(5*mono.Second, func() bool { return false })
	x.p.Close(w.now)
	y.p.Close(w.now)
	for w.step() {
	}
	if x.m.Conns()+y.m.Conns()+x.m.IDs+y.m.IDs != 0 {
		t.Fatalf("left: %d %d %d %d", x.m.Conns(), y.m.Conns(), x.m.IDs, y.m.IDs)
	}
}
