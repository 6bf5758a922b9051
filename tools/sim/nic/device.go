package nic

import (
	"fmt"
	"net/netip"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/transport"
)

// whole is a host's NIC as a daemon has it: rings in memory, doorbells, completions, one Step. Its program is the host.
type whole struct {
	h     *host
	nic   *device.NIC
	ctx   *device.Context
	prog  *hostqtest.Prog
	wires []*port
	cq    *hostqtest.Queue
	srq   *hostqtest.Shared
	lanes []*lane // by the number in their requests' IDs
	mr    *device.MR
	pd    uint32
	cqNum uint32
	srNum uint32
	next  uint64 // address of the next message at its peer
}

// Where the one region of a program is, and how much of it is written before it begins again: there is no memory behind it.
const (
	regionBase = 1 << 32
	regionSize = 1 << 45
)

// rights of the region and of QPs: local and remote writes.
const rights = 1<<0 | 1<<1

// tagBytes is the room that a device keeps in packets for the tag of a secured association.
const tagBytes = 16

// ring is how many packets wait in front of a wire before it refuses more: a burst of the device, as in the send rings of NICs.
// With less, acknowledgements would wait with what was refused: a device that could not send everything asks its engine for no
// more before it could.
const ring = pkt.Burst

// recvMost bounds the receives that a program has posted.
const recvMost = 16384

// port is one of the fabric as a wire of the device. What a host's port does not take at once stays with the device.
type port struct {
	h    *host
	port *fabric.Port
	caps device.PortCaps
	rx   []pkt.Packet // what has come, until the device takes it
	room int          // bytes that may wait
	full bool         // it refused something when it was asked last
}

// policies of the NIC by a plan's transport.
func policy(k plan.TransportKind) device.Policy {
	if k == plan.RoCEv2 {
		return device.OnlyRoCEv2
	}
	return device.OnlyMetaRoCE
}

// newWhole makes the NIC of a host that is to have so many connections, and lays out its program's memory.
func (w *World) newWhole(h *host, lanes int) (*whole, error) {
	p := w.tx.p
	d := &whole{h: h}
	c := device.Config{Name: fmt.Sprintf("host%d/mr0", h.id), Dev: "mr0", GUID: uint64(h.id) + 1, Instance: 1, Seed: w.tx.seedOf(h.id), Addrs: []netip.Addr{addrOf(h.id)},
		Transport: policy(p.Transport.Kind), Tune: device.Tuning{MetaRoCE: w.tx.tuneMetaRoCE, RoCEv2: w.tx.tuneRoCEv2}}
	for i, x := range h.ports {
		y := &port{h: h, port: x, room: ring * w.wireBytes, caps: device.PortCaps{Name: fmt.Sprintf("sim:%d", i), Kind: "sim", PacketMax: packetMax + tagBytes, RateBps: w.tx.rate()}}
		d.wires = append(d.wires, y)
		c.Ports = append(c.Ports, y)
	}
	var err error
	if d.nic, err = device.New(c); err != nil {
		return nil, err
	}
	if p.Transport.Kind == plan.RoCEv2 {
		h.e = d.nic.RoCEv2()
	} else {
		h.e = d.nic.MetaRoCE()
	}
	w.tx.paths(h.e)
	recvs := uint32(min(recvMost, power(64+lanes*sqEntries)))
	entries := uint32(power(int(recvs) + lanes*sqEntries))
	const page = hostq.RingAlign
	size := hostq.CtxPageBytes + (hostq.RingHdr + int(entries)*128 + page) + (hostq.RingHdr + int(recvs)*(4+64) + 2*page) + lanes*(hostq.RingHdr+sqEntries*sqStride+page)
	mem := hostq.NewTestMem(max(hostq.CtxBytesMin, (size+page-1)&^(page-1)))
	d.prog = hostqtest.New(mem)
	d.ctx = d.nic.OpenContext(device.ContextConfig{Mem: mem, Space: d.space(), Notifier: deaf{}, Program: "sim", PID: 1})
	return d, d.objects(entries, recvs)
}

// space is the memory of the host's program.
func (d *whole) space() device.Space {
	if d.h.w.tx.p.Transport.Verify {
		return (*knownMemory)(d.h)
	}
	return (*noMemory)(d.h)
}

// sqStride is the length of a send request with its one piece of memory.
const sqStride = 128

// power is the least power of two that is not below n.
func power(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// objects makes what all QPs of the program share.
func (d *whole) objects(entries, recvs uint32) (err error) {
	if d.pd, err = d.ctx.AllocPD(); err != nil {
		return err
	}
	if d.mr, err = d.ctx.RegMR(&hostq.RegMR{PD: d.pd, Addr: regionBase, IOVA: regionBase, Length: regionSize, Access: rights}); err != nil {
		return err
	}
	d.cq = d.prog.NewQueue(entries, 128, 0)
	if d.cqNum, err = d.ctx.CreateCQ(&hostq.CreateCQ{Entries: entries, Ring: d.cq.Off}); err != nil {
		return err
	}
	d.srq = d.prog.NewShared(recvs, 64)
	d.srNum, err = d.ctx.CreateSRQ(&hostq.CreateSRQ{PD: d.pd, Entries: recvs, MaxSGE: 1, Stride: 64, Ring: d.srq.Off, Slots: d.srq.Slots})
	for i := range recvs {
		d.srq.Post(i, uint64(i))
	}
	return err
}

// lane makes a QP of a connection.
func (d *whole) lane(c *conn) (*lane, error) {
	n := uint32(len(d.lanes))
	l := &lane{c: c, slots: sqEntries, num: n, sq: d.prog.NewQueue(sqEntries, sqStride, n)}
	q, err := d.ctx.CreateQP(&hostq.CreateQP{PD: d.pd, Type: 2, SendCQ: d.cqNum, RecvCQ: d.cqNum, SRQ: d.srNum, SQEntries: sqEntries, SQStride: sqStride,
		MaxSendSGE: 1, SQRing: l.sq.Off, SQDoorbell: n, Cookie: uint64(n)})
	if err != nil {
		return nil, err
	}
	l.dq = q
	d.lanes = append(d.lanes, l)
	c.qps = append(c.qps, l)
	return l, nil
}

// Bits of enum ibv_qp_attr_mask for the way up.
const (
	toInit = 1<<0 | 1<<3 | 1<<4 | 1<<5
	toRTR  = 1<<0 | 1<<7 | 1<<8 | 1<<12 | 1<<15 | 1<<17 | 1<<20
	toRTS  = 1<<0 | 1<<9 | 1<<10 | 1<<11 | 1<<13 | 1<<16
)

// connect brings a QP up with that of its peer, as a program does.
func (d *whole) connect(l, peer *lane) error {
	mtu := uint32(1)
	for 128<<mtu < d.h.w.tx.p.Topology.MTU {
		mtu++
	}
	for _, s := range []struct {
		to   device.State
		mask uint32
	}{{device.Init, toInit}, {device.RTR, toRTR}, {device.RTS, toRTS}} {
		if err := d.ctx.ModifyQP(d.h.w.net.Now, &hostq.ModifyQP{Handle: l.dq.Handle(), Mask: s.mask, QPState: uint32(s.to), PortNum: 1, QPAccessFlags: rights, PathMTU: mtu,
			DestQPNum: peer.dq.QPN(), AH: hostq.AHAttr{DGID: addrOf(l.c.peer).As16(), IsGlobal: 1, PortNum: 1, HopLimit: 64}, MaxRdAtomic: 1, MaxDestRdAtomic: 1,
			Timeout: d.h.w.tx.timeoutOf(), RetryCnt: 7, RNRRetry: 7}); err != nil {
			return fmt.Errorf("host %d to %v: %w", d.h.id, s.to, err)
		}
	}
	return nil
}

// connectWhole makes the connections of programs with whole NICs, in the order of the messages.
func (w *World) connectWhole() error {
	pairs := w.pairs()
	lanes := make([]int, len(w.hosts))
	k := max(1, w.tx.p.Transport.QPs)
	for _, p := range pairs {
		lanes[p[0]] += k
		lanes[p[1]] += k
	}
	for i, h := range w.hosts {
		var err error
		if h.whole, err = w.newWhole(h, lanes[i]); err != nil {
			return fmt.Errorf("host %d: %w", i, err)
		}
	}
	for _, p := range pairs {
		a, b := w.hosts[p[0]], w.hosts[p[1]]
		ca, cb := w.join(a, b)
		for range k {
			la, err := a.whole.lane(ca)
			if err != nil {
				return fmt.Errorf("host %d: %w", a.id, err)
			}
			lb, err := b.whole.lane(cb)
			if err != nil {
				return fmt.Errorf("host %d: %w", b.id, err)
			}
			la.key, lb.key = b.whole.mr.Key(), a.whole.mr.Key()
			if err := a.whole.connect(la, lb); err != nil {
				return err
			}
			if err := b.whole.connect(lb, la); err != nil {
				return err
			}
		}
	}
	return nil
}

// step runs program and NIC until neither has anything to do at this time: the program takes no time.
func (d *whole) step(now mono.Time) (next mono.Time) {
	h := d.h
	for {
		h.postAll(now)
		next, _ = d.nic.Step(now)
		d.poll(now)
		if len(h.ready) == 0 && len(h.freed) == 0 {
			break
		}
	}
	if next > now {
		return next
	}
	at, full := mono.Never, false
	for _, x := range d.wires {
		if x.full {
			full, at = true, min(at, x.NextWake())
		}
	}
	if full { // what the engine wants to send goes when there is room; ports with flow control ask then
		return at
	}
	return next
}

// poll takes all completions, and posts the receives anew that these have used.
func (d *whole) poll(now mono.Time) {
	h := d.h
	for {
		e, ok := d.cq.Poll()
		switch {
		case !ok:
			return
		case e.Flags&hostq.CQESend == 0:
			d.srq.Post(e.Slot, uint64(e.Slot))
			if e.Status == 0 {
				h.came(now, int32(e.Imm))
			}
		default:
			h.sent(d.lanes[e.WRID>>32], int32(uint32(e.WRID)), e.ByteLen, transport.Status(e.Status))
		}
	}
}

// put writes requests into the send queue while it has room, and rings once.
func (l *lane) put(now mono.Time) {
	d := l.c.h.whole
	rang := false
	for l.head < len(l.wait) && l.slots > 0 {
		p := l.wait[l.head]
		l.head++
		at := d.place(p.size)
		e := hostq.SQE{WRID: uint64(l.num)<<32 | uint64(uint32(p.msg)), Opcode: uint8(transport.OpWriteImm), Flags: hostq.SendSignaled, Imm: uint32(p.msg),
			RemoteAddr: at, RKey: l.key}
		if p.size > 0 {
			l.sq.PutSend(e, nil, hostq.SGE{Addr: at, Length: p.size, LKey: d.mr.Key()})
		} else {
			l.sq.PutSend(e, nil)
		}
		l.slots--
		if l.c.h.w.steady {
			l.since.push(now)
		}
		rang = true
	}
	if rang {
		l.sq.Ring()
	}
}

// place is an address for a message of its own, at its sender and its receiver: in a part of the region that is the sender's.
func (d *whole) place(size uint32) uint64 {
	n := (uint64(size) + 4095) &^ 4095
	span := uint64(regionSize) / uint64(len(d.h.w.hosts)) &^ 4095
	if n > span { // never where it matters (plan: verify)
		return regionBase
	}
	if d.next+n > span {
		d.next = 0
	}
	a := d.next
	d.next += n
	return regionBase + uint64(d.h.id)*span + a
}

// Caps implements device.Port.
func (x *port) Caps() device.PortCaps { return x.caps }

// SetAddrs implements device.Port: the fabric knows where hosts are.
func (x *port) SetAddrs([]netip.Addr) {}

// RxBurst implements device.Port.
func (x *port) RxBurst(_ mono.Time, ps []pkt.Packet) int {
	n := copy(ps, x.rx)
	x.rx = x.rx[:0] // the host steps after each packet
	return n
}

// TxBurst implements device.Port.
func (x *port) TxBurst(now mono.Time, ps []pkt.Packet) int {
	for i := range ps {
		if x.full = x.port.Backlog(now) > x.room; x.full {
			return i
		}
		x.h.send(now, &ps[i])
	}
	return len(ps)
}

// LinkUp implements device.Port: what an event of a plan stops does not tell the NIC.
func (x *port) LinkUp() bool { return true }

// NextWake implements device.Port: when the wire takes something again.
func (x *port) NextWake() mono.Time {
	if len(x.rx) > 0 {
		return x.h.now
	}
	n := x.port.Backlog(x.h.now) - x.room
	if n <= 0 || x.port.Asks() {
		return mono.Never
	}
	return x.h.now.Add(mono.Duration(float64(n)*x.h.w.nsPerByte) + 1)
}

// FDs implements device.Port.
func (x *port) FDs() []int { return nil }

// Stats implements device.Port.
func (x *port) Stats() device.PortStats { return device.PortStats{} }

// Close implements device.Port.
func (x *port) Close() error { return nil }

// noMemory is the memory of a host's program: what is read is whatever was there, what is written is counted.
type noMemory host

// Read implements device.Space.
func (m *noMemory) Read(segs []device.Seg) (int, error) { return m.each(segs, false) }

// Write implements device.Space.
func (m *noMemory) Write(segs []device.Seg) (int, error) { return m.each(segs, true) }

func (m *noMemory) each(segs []device.Seg, write bool) (int, error) {
	for i := range segs {
		s := &segs[i]
		if s.Addr < regionBase || s.Addr+uint64(len(s.Buf)) > regionBase+regionSize {
			return i, device.ErrFault
		}
		if write {
			m.placed += uint64(len(s.Buf))
		}
	}
	return len(segs), nil
}

// knownMemory has at each address the byte that belongs there: what is read is that, what is written must be.
type knownMemory host

// Read implements device.Space.
func (m *knownMemory) Read(segs []device.Seg) (int, error) {
	for i := range segs {
		s := &segs[i]
		for k := range s.Buf {
			s.Buf[k] = byteAt(s.Addr + uint64(k))
		}
	}
	return (*noMemory)(m).each(segs, false)
}

// Write implements device.Space.
func (m *knownMemory) Write(segs []device.Seg) (int, error) {
	for i := range segs {
		s := &segs[i]
		for k, b := range s.Buf {
			if b != byteAt(s.Addr+uint64(k)) {
				return i, device.ErrFault
			}
		}
	}
	return (*noMemory)(m).each(segs, true)
}

// byteAt is the byte that belongs to an address: eight in a row are those of a product.
func byteAt(a uint64) byte { return byte((a>>3*0x9e3779b97f4a7c15 ^ a>>20) >> ((a & 7) * 8)) }

// deaf takes events: programs poll.
type deaf struct{}

// CompEvent implements device.Notifier.
func (deaf) CompEvent(uint32, hostq.CompEvent) bool { return true }

// AsyncEvent implements device.Notifier.
func (deaf) AsyncEvent(hostq.AsyncEvent) bool { return true }
