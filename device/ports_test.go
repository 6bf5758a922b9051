package device_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

// frame is an IPv4 frame between two addresses that end in a and b.
func frame(dst byte, a, b byte) []byte {
	f := make([]byte, 60)
	f[0] = dst
	f[12], f[13] = 8, 0
	f[29], f[33] = a, b
	f[59] = a ^ b
	return f
}

// TestHostPort: the host's frames go over the planes, each flow over one, broadcast over the lowest living one, and
// come out at the other host in order.
func TestHostPort(t *testing.T) {
	var hosts [2]*devicetest.Wire
	var nics [2]*device.NIC
	var planes [2][]device.Port
	var wires []*devicetest.Wire
	for range 4 {
		x, y := devicetest.NewWire(4300)
		planes[0], planes[1] = append(planes[0], x), append(planes[1], y)
		wires = append(wires, x)
	}
	for i := range nics {
		host, inside := devicetest.NewWire(4300)
		hosts[i] = host
		n, err := device.New(device.Config{Name: fmt.Sprintf("%d/mr0", i), Dev: "mr0", Ports: planes[i], HostPort: inside,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}, NewEngine: devicetest.NewNet().New})
		if err != nil {
			t.Fatal(err)
		}
		nics[i] = n
	}
	now := mono.Time(1e9)
	step := func() {
		for range 3 {
			now += 1000
			nics[0].Step(now)
			nics[1].Step(now)
		}
	}
	send := func(fs ...[]byte) (got [][]byte) {
		for _, f := range fs {
			hosts[0].TxBurst(now, []pkt.Packet{{Data: f, Kind: pkt.Ethernet}})
		}
		step()
		ps := make([]pkt.Packet, 64)
		for _, p := range ps[:hosts[1].RxBurst(now, ps)] {
			got = append(got, p.Data)
		}
		return got
	}
	used := func() (u []uint64) {
		for _, p := range nics[0].Planes() {
			u = append(u, p.Device.EthTx)
		}
		return u
	}
	for i := range byte(40) {
		f := frame(2, 1, i)
		if got := send(f, f); len(got) != 2 || string(got[0]) != string(f) {
			t.Fatalf("frame %d: %d arrived", i, len(got))
		}
	}
	for i, n := range used() {
		if n < 4 || n%2 != 0 {
			t.Errorf("plane %d carried %d frames: %v", i, n, used())
		}
	}
	before := used()[0]
	send(frame(0xff, 1, 2), frame(0xff, 1, 3))
	if used()[0] != before+2 {
		t.Error("broadcast did not take the lowest plane")
	}
	wires[0].Down = true
	now += mono.Time(20 * mono.Millisecond)
	step()
	before = used()[1]
	if got := send(frame(0xff, 1, 2)); len(got) != 1 || used()[1] != before+1 {
		t.Error("broadcast did not take the lowest living plane")
	}
	if got := send(make([]byte, 20000)); len(got) != 0 || nics[0].HostPort().Dropped != 1 {
		t.Error("a frame that is too long")
	}
}

// TestStuckWire: what a wire refuses is kept and offered again; when it takes nothing for long it is lost, so that the
// other planes go on.
func TestStuckWire(t *testing.T) {
	w := newWorld(t, false)
	a, b, qa, _ := w.pair(t)
	write := func(id uint64) {
		qa.SQ.PutSend(hostq.SQE{WRID: id, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 50000))
		qa.SQ.Ring()
	}
	write(1)
	w.want(a, 1, transport.OK)
	port := w.ports[0]
	port.Refuse = true
	write(2)
	w.step(20)
	if p := w.nics[0].Planes()[0].Device; p.TxRefused == 0 || p.TxDropped != 0 {
		t.Errorf("refused %d, dropped %d", p.TxRefused, p.TxDropped)
	}
	port.Refuse = false
	w.want(a, 2, transport.OK)
	if p := w.nics[0].Planes()[0].Device; p.TxDropped != 0 {
		t.Errorf("dropped %d", p.TxDropped)
	}
	port.Refuse = true
	write(3)
	w.step(300)
	if p := w.nics[0].Planes()[0].Device; p.TxDropped == 0 {
		t.Error("kept for ever")
	}
	port.Refuse = false
	w.want(a, 3, transport.OK)
}

// TestFullWire: while one plane's wire takes nothing, the others go on, and nothing is lost.
func TestFullWire(t *testing.T) {
	for _, policy := range []device.Policy{device.OnlyMetaRoCE, device.OnlyRoCEv2} {
		w := newWorldOf(t, false, policy)
		w.nics = nil
		var first []*devicetest.Wire // of the first NIC, by plane
		var ports [2][]device.Port
		for range 2 {
			x, y := devicetest.NewWire(4300)
			first = append(first, x)
			ports[0], ports[1] = append(ports[0], x), append(ports[1], y)
		}
		for i := range ports {
			n, err := device.New(device.Config{Name: string(rune('a'+i)) + "/mr0", Dev: "mr0", Seed: uint64(i + 1), Instance: 1, Ports: ports[i], Transport: policy,
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}})
			if err != nil {
				t.Fatal(err)
			}
			w.nics = append(w.nics, n)
		}
		w.step(1)
		a, b := newProg(t, w.nics[0]), newProg(t, w.nics[1])
		var qs []*qpair
		for range 16 { // RoCEv2's are on one plane each
			qa, qb := a.qp(), b.qp()
			a.up(qa, b.nic.Addrs()[0], qb.QPN())
			b.up(qb, a.nic.Addrs()[0], qa.QPN())
			qs = append(qs, qa)
		}
		write := func() {
			for _, q := range qs {
				q.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 50000))
				q.SQ.Ring()
			}
		}
		done := func(steps int) (n int) {
			for range steps {
				w.step(1)
				for e, ok := a.CQ.Poll(); ok; e, ok = a.CQ.Poll() {
					if transport.Status(e.Status) != transport.OK {
						t.Fatalf("%v: %v", policy, transport.Status(e.Status))
					}
					n++
				}
			}
			return n
		}
		write()
		if n := done(2000); n != len(qs) {
			t.Fatalf("%v: %d of %d", policy, n, len(qs))
		}
		first[0].Refuse = true
		other := w.nics[0].Planes()[1].Device.TxPackets
		write()
		done(20)
		if now := w.nics[0].Planes()[1].Device.TxPackets; now < other+50 {
			t.Errorf("%v: %d packets on the other plane", policy, now-other)
		}
		if p := w.nics[0].Planes()[0].Device; p.TxRefused == 0 || p.TxDropped != 0 {
			t.Errorf("%v: refused %d, dropped %d", policy, p.TxRefused, p.TxDropped)
		}
		first[0].Refuse = false
		done(5000)
		if p := w.nics[0].Planes()[0].Device; p.TxDropped != 0 {
			t.Errorf("%v: dropped %d", policy, p.TxDropped)
		}
	}
}

// TestDrain: SQD holds what is posted, tells when all is done, and goes on with RTS.
func TestDrain(t *testing.T) {
	for _, double := range []bool{true, false} {
		w := newWorld(t, double)
		a, b, qa, _ := w.pair(t)
		write := func(id uint64) {
			qa.SQ.PutSend(hostq.SQE{WRID: id, Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 20000))
			qa.SQ.Ring()
		}
		move := func(to device.State, mask uint32) {
			t.Helper()
			m := attr(qa.Handle(), to, b.nic.Addrs()[0], 0)
			m.Mask, m.EnSQDAsyncNotify = mask, 1
			if err := a.ctx.ModifyQP(w.now, m); err != nil {
				t.Fatal(err)
			}
		}
		write(9)
		w.want(a, 9, transport.OK)
		write(1)
		a.nic.Step(w.now)
		move(device.SQD, 1|1<<2)
		write(2)
		w.want(a, 1, transport.OK)
		w.step(500)
		if _, ok := a.CQ.Poll(); ok {
			t.Error("a request went out in SQD")
		}
		if len(a.ev.async) != 1 || a.ev.async[0].Type != 5 {
			t.Errorf("events %+v", a.ev.async)
		}
		var q hostq.ModifyQP
		if err := a.ctx.QueryQP(qa.Handle(), &q); err != nil || q.QPState != 4 || q.SQDraining != 0 {
			t.Errorf("query: %v %+v", err, q)
		}
		move(device.RTS, 1)
		w.want(a, 2, transport.OK)
	}
}

// TestManyQPs: thousands of QPs of one program, all at work, and all gone with it.
func TestManyQPs(t *testing.T) {
	const n = 500
	w := newWorld(t, false)
	a, b := newProg(t, w.nics[0]), newProg(t, w.nics[1])
	var qas []*qpair
	for range n {
		qa, qb := a.thin(), b.thin()
		a.up(qa, b.nic.Addrs()[0], qb.QPN())
		b.up(qb, a.nic.Addrs()[0], qa.QPN())
		qas = append(qas, qa)
	}
	for i, q := range qas {
		q.SQ.PutSend(hostq.SQE{WRID: uint64(i), Opcode: hostq.WRWrite, Flags: hostq.SendSignaled, RKey: b.mr.Key(), RemoteAddr: ramBase + uint64(i)*8}, nil, a.sge(uint32(i)*8, 8))
		q.SQ.Ring()
	}
	done := 0
	for range 5000 {
		w.step(1)
		for e, ok := a.CQ.Poll(); ok; e, ok = a.CQ.Poll() {
			if e.Status != 0 {
				t.Fatalf("%+v", e)
			}
			done++
		}
	}
	if done != n {
		t.Errorf("%d of %d done", done, n)
	}
	a.ctx.Close(w.now)
	b.ctx.Close(w.now)
	for _, x := range w.nics {
		if x.C.Live != (device.Live{}) {
			t.Errorf("left over: %+v", x.C.Live)
		}
	}
}
