package daemon

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/cm"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

func cmHello(t *testing.T, d *Daemon) *prog {
	t.Helper()
	p, err := dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	hello := hostq.Hello{Magic: hostq.Magic, ABIMajor: hostq.ABIMajor}
	if _, _, err := p.raw(seal(append([]byte(nil), hostq.Bytes(&hello)...), hostq.OpHello, 1)); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCMHostile: programs that ask for connections at random, with numbers that are now and then right. The daemon goes
// on, and nothing of them is left when they are gone.
func TestCMHostile(t *testing.T) {
	d := start(t, nil)
	r := rng.New(1, "cm hostile")
	var progs []*prog
	for range 3 {
		p := cmHello(t, d)
		var setup hostq.CMSetup
		before := hostq.Handle{}
		if b, _, err := p.raw(seal(append([]byte(nil), hostq.Bytes(&before)...), hostq.OpCMCreateChannel, 1)); err != nil || b[12] != byte(unix.EINVAL) {
			t.Fatalf("before SETUP: %v %v", b, err)
		}
		if b, _, err := p.raw(seal(append([]byte(nil), hostq.Bytes(&setup)...), hostq.OpCMSetup, 1)); err != nil || b[12] != 0 {
			t.Fatalf("SETUP: %v %v", b, err)
		}
		progs = append(progs, p)
	}
	worked, top := map[hostq.Op]int{}, [3]uint32{}
	for i := range 30_000 / (3*testLoops - 2) { // two loops, their wires polled, share the cores with this
		op, n := hostq.OpCMCreateChannel+hostq.Op(r.IntN(20)), i%len(progs)
		if (op == hostq.OpCMDestroyID || op == hostq.OpCMDestroyChannel || op == hostq.OpCMDisconnect) && r.Chance(0.8) {
			continue
		}
		b, fds, err := progs[n].raw(seal(randomCM(r, op, top[n]), op, uint32(i)))
		if err != nil {
			t.Fatalf("message %d, operation %d: %v", i, op, err)
		}
		closeAll(fds)
		if b[12] != 0 {
			continue
		}
		worked[op]++
		var h hostq.Handle
		if (op == hostq.OpCMCreateChannel || op == hostq.OpCMCreateID || op == hostq.OpCMJoin) && hostq.Decode(b, &h) {
			top[n] = h.Handle
		}
	}
	if len(worked) < 14 {
		t.Errorf("only these operations ever succeeded: %v", worked)
	}
	for _, p := range progs {
		p.close()
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ids, conns := 0, 0
		d.OnLoop(func(mono.Time) { ids, conns = d.cm.IDs, d.cm.Conns() })
		if ids == 0 && conns == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d IDs and %d exchanges are left", ids, conns)
		}
	}
}

// randomCM is a message of an operation: handles that may exist, up to the newest, addresses that the NICs may have.
func randomCM(r *rng.Source, op hostq.Op, top uint32) []byte {
	handle := func() uint32 { return top - uint32(r.IntN(20)) }
	addr := func() (a hostq.CMAddr) {
		a = hostq.CMAddr{Family: [...]uint16{0, unix.AF_INET, unix.AF_INET, unix.AF_INET, unix.AF_INET6, 77}[r.IntN(6)], Port: uint16(r.IntN(4))}
		last := [...][4]byte{{10, 0, 0, 1}, {10, 0, 0, 2}, {0, 0, 0, 0}, {127, 0, 0, 1}, {239, 1, 1, 1}, {10, 0, 0, 9}}[r.IntN(6)]
		copy(a.Addr[12:], last[:])
		if r.Chance(0.5) {
			a.Addr[10], a.Addr[11] = 0xff, 0xff
		}
		return a
	}
	var b []byte
	switch op {
	case hostq.OpCMCreateID:
		m := hostq.CMCreate{Channel: handle(), PS: uint32([...]cm.PortSpace{cm.PSTCP, cm.PSUDP, cm.PSIB, 9}[r.IntN(4)]), QPType: uint32(1 + r.IntN(5))}
		b = hostq.Bytes(&m)
	case hostq.OpCMBind, hostq.OpCMResolveAddr, hostq.OpCMJoin:
		m := hostq.CMAddrs{ID: handle(), Src: addr(), Dst: addr()}
		b = hostq.Bytes(&m)
	case hostq.OpCMListen, hostq.OpCMQPAttr, hostq.OpCMMigrate, hostq.OpCMLeave:
		m := hostq.CMArg{ID: handle(), Arg: uint32(r.IntN(4))}
		if op == hostq.OpCMMigrate || op == hostq.OpCMLeave {
			m.Arg = handle()
		}
		b = hostq.Bytes(&m)
	case hostq.OpCMConnect, hostq.OpCMAccept, hostq.OpCMReject:
		m := hostq.CMConn{ID: handle(), Arg: r.Uint32(), Param: hostq.CMParam{QPN: r.Uint32(), ResponderResources: uint8(r.IntN(20)), PrivateLen: uint16(r.IntN(300))}}
		b = hostq.Bytes(&m)
	case hostq.OpCMSetOption:
		m := hostq.CMOption{ID: handle(), Level: uint32(r.IntN(2)), Name: uint32(r.IntN(5)), Value: r.Uint32()}
		b = hostq.Bytes(&m)
	default:
		m := hostq.Handle{Handle: handle()}
		b = hostq.Bytes(&m)
	}
	return append([]byte(nil), b...)
}

func TestVisible(t *testing.T) {
	for _, c := range []struct {
		list, name string
		want       bool
	}{{"", "a/mr0", true}, {"a", "a/mr0", true}, {"mr0", "a/mr0", true}, {"a/mr0", "a/mr0", true}, {"b,a/mr0", "a/mr0", true}, {"a/mr1", "a/mr0", false},
		{"b", "a/mr0", false}, {",", "a/mr0", false}, {"ab", "a/mr0", false}, {"mr", "a/mr0", false}} {
		if got := visible(c.list, c.name, "mr0"); got != c.want {
			t.Errorf("%q names %s: %v", c.list, c.name, got)
		}
	}
}
