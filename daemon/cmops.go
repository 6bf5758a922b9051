package daemon

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/cm"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// Requests of connection management: package cm does the work, on the first loop.

// newCM makes the connection manager of the daemon's NICs and gives it their QPs 1.
func (d *Daemon) newCM(seed uint64) {
	cfg := cm.Config{Seed: seed, Send: d.sendMAD, Resolve: d.resolve}
	for _, n := range d.nics {
		cfg.NICs = append(cfg.NICs, cm.NIC{Name: n.Name(), GUID: n.GUID(), Addrs: n.Addrs(), MTU: n.ActiveMTU(), Reads: uint8(min(n.MaxReads(), 255))})
	}
	d.cm = cm.New(cfg)
	for i, n := range d.nics {
		n.OnMAD(func(now mono.Time, src, dst netip.Addr, mad []byte) { d.gotMAD(now, i, src, dst, mad) })
	}
}

// madsMost is how many datagrams may be on their way between loops. More are lost, as on any wire: strangers send them.
const madsMost = 4096

// passMAD hands f to another loop.
func (d *Daemon) passMAD(to *loop, f func()) {
	if d.madsOut.Add(1) > madsMost {
		d.madsOut.Add(-1)
		d.madsLost.Add(1)
		return
	}
	to.post(func() {
		d.madsOut.Add(-1)
		f()
	})
}

// sendMAD sends a datagram of connection management from a NIC, on that NIC's loop.
func (d *Daemon) sendMAD(now mono.Time, nic int, local, remote netip.Addr, mad *[cm.MADLen]byte) {
	n, l := d.nics[nic], d.loopAt(nic)
	if l.index == 0 {
		n.SendMAD(now, local, remote, mad)
		return
	}
	own := *mad
	d.passMAD(l, func() { n.SendMAD(l.now(), local, remote, &own) })
}

// gotMAD takes a datagram that a NIC received to connection management. On that NIC's loop.
func (d *Daemon) gotMAD(now mono.Time, nic int, src, dst netip.Addr, mad []byte) {
	if d.loopAt(nic).index == 0 {
		d.cm.HandleMAD(now, nic, src, dst, mad)
		return
	}
	own := bytes.Clone(mad) // it lies in the packet
	d.passMAD(d.loops[0], func() { d.cm.HandleMAD(d.clock.now(), nic, src, dst, own) })
}

// resolve lets a NIC ask where an address is before it is needed.
func (d *Daemon) resolve(now mono.Time, nic int, local, remote netip.Addr) {
	n, l := d.nics[nic], d.loopAt(nic)
	if l.index == 0 {
		n.Resolve(now, local, remote)
		return
	}
	d.passMAD(l, func() { n.Resolve(l.now(), local, remote) })
}

// cmClient is what a connection has of connection management.
type cmClient struct {
	prog *cm.Program
	fds  map[uint32]int // event channels by handle, the daemon's end
}

// closeCM ends what a program had; its peers are told. It may be called again.
func (c *client) closeCM(now mono.Time) {
	if c.cm.prog == nil {
		return
	}
	c.cm.prog.Close(now)
	c.cm.prog = nil
	for h, fd := range c.cm.fds {
		unix.Close(fd)
		delete(c.cm.fds, h)
	}
}

// inCM wraps a handler that runs on the loop for a program that has set itself up.
func inCM[T hostq.Plain](f func(c *client, m *T, now mono.Time) ([]byte, error)) handler {
	return decoded(func(c *client, m *T, _ []int) (a answer) {
		a.err = unix.EIO
		c.d.loops[0].do(func(now mono.Time) {
			if c.cm.prog == nil {
				a.err = unix.EINVAL
				return
			}
			a.msg, a.err = f(c, m, now)
		})
		return a
	})
}

// withID is inCM for requests about an ID.
func withID[T hostq.Plain](of func(m *T) uint32, f func(id *cm.ID, m *T, now mono.Time) ([]byte, error)) handler {
	return inCM(func(c *client, m *T, now mono.Time) ([]byte, error) {
		id, err := c.cm.prog.ID(of(m))
		if err != nil {
			return nil, err
		}
		return f(id, m, now)
	})
}

func idOfHandle(m *hostq.Handle) uint32 { return m.Handle }
func idOfAddrs(m *hostq.CMAddrs) uint32 { return m.ID }
func idOfArg(m *hostq.CMArg) uint32     { return m.ID }
func idOfConn(m *hostq.CMConn) uint32   { return m.ID }

// done is the reply of a request that only succeeds or fails.
func done(err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return header()
}

func init() {
	for op, h := range map[hostq.Op]handler{
		hostq.OpCMSetup:          decoded(doCMSetup),
		hostq.OpCMCreateChannel:  decoded(doCMCreateChannel),
		hostq.OpCMDestroyChannel: inCM(doCMDestroyChannel),
		hostq.OpCMGetEvent:       inCM(doCMGetEvent),
		hostq.OpCMCreateID:       inCM(doCMCreateID),
		hostq.OpCMDestroyID: withID(idOfHandle, func(id *cm.ID, _ *hostq.Handle, now mono.Time) ([]byte, error) {
			return counted(id.Destroy(now))
		}),
		hostq.OpCMBind: withID(idOfAddrs, func(id *cm.ID, m *hostq.CMAddrs, _ mono.Time) ([]byte, error) {
			a, err := fromCMAddr(&m.Src)
			if err == nil {
				err = id.Bind(a)
			}
			return done(err)
		}),
		hostq.OpCMResolveAddr: withID(idOfAddrs, doCMResolveAddr),
		hostq.OpCMResolveRoute: withID(idOfHandle, func(id *cm.ID, _ *hostq.Handle, _ mono.Time) ([]byte, error) {
			return done(id.ResolveRoute())
		}),
		hostq.OpCMQuery: inCM(doCMQuery),
		hostq.OpCMListen: withID(idOfArg, func(id *cm.ID, m *hostq.CMArg, _ mono.Time) ([]byte, error) {
			return done(id.Listen(int(int32(m.Arg))))
		}),
		hostq.OpCMConnect: withID(idOfConn, func(id *cm.ID, m *hostq.CMConn, now mono.Time) ([]byte, error) {
			return done(withPrivate(m, func(p cm.Param, private []byte) error { return id.Connect(now, p, private) }))
		}),
		hostq.OpCMAccept: withID(idOfConn, func(id *cm.ID, m *hostq.CMConn, now mono.Time) ([]byte, error) {
			return done(withPrivate(m, func(p cm.Param, private []byte) error { return id.Accept(now, p, private) }))
		}),
		hostq.OpCMReject: withID(idOfConn, func(id *cm.ID, m *hostq.CMConn, now mono.Time) ([]byte, error) {
			return done(withPrivate(m, func(_ cm.Param, private []byte) error { return id.Reject(now, uint16(m.Arg), private) }))
		}),
		hostq.OpCMEstablish: withID(idOfHandle, func(id *cm.ID, _ *hostq.Handle, now mono.Time) ([]byte, error) {
			return done(id.Establish(now))
		}),
		hostq.OpCMDisconnect: withID(idOfHandle, func(id *cm.ID, _ *hostq.Handle, now mono.Time) ([]byte, error) {
			return done(id.Disconnect(now))
		}),
		hostq.OpCMQPAttr:    withID(idOfArg, doCMQPAttr),
		hostq.OpCMSetOption: withID(func(m *hostq.CMOption) uint32 { return m.ID }, doCMSetOption),
		hostq.OpCMMigrate:   inCM(doCMMigrate),
		hostq.OpCMJoin:      withID(idOfAddrs, doCMJoin),
		hostq.OpCMLeave: withID(idOfArg, func(id *cm.ID, m *hostq.CMArg, _ mono.Time) ([]byte, error) {
			n, err := id.Leave(m.Arg)
			if err != nil {
				return nil, err
			}
			return counted(0, n)
		}),
	} {
		handlers[op] = h
	}
}

// doCMSetup makes a program. Its death is watched, as that of one with a context: a child may keep the socket open.
func doCMSetup(c *client, m *hostq.CMSetup, _ []int) (a answer) {
	list := text(m.NICs[:])
	a.err = unix.EIO
	c.d.loops[0].do(func(mono.Time) {
		if c.cm.prog != nil {
			a.err = unix.EINVAL
			return
		}
		c.d.loops[0].watchProgram(c)
		var nics []int
		for i, n := range c.d.nics {
			if visible(list, n.Name(), n.Dev()) {
				nics = append(nics, i)
			}
		}
		c.cm = cmClient{prog: c.d.cm.NewProgram(nics), fds: map[uint32]int{}}
		a.msg, a.err = header()
	})
	return a
}

// visible reports whether a list like MR_NIC names a NIC.
func visible(list, name, dev string) bool {
	host, _, _ := strings.Cut(name, "/")
	for w := range strings.SplitSeq(list, ",") {
		if w != "" && (w == name || w == dev || w == host) {
			return true
		}
	}
	return list == ""
}

func doCMCreateChannel(c *client, _ *hostq.Handle, _ []int) (a answer) {
	ours, theirs, err := eventPair()
	if err != nil {
		return answer{err: err}
	}
	var ch *cm.Channel
	a.err = unix.EIO
	c.d.loops[0].do(func(mono.Time) {
		if c.cm.prog == nil {
			a.err = unix.EINVAL
			return
		}
		tick := hostq.CompEvent{Cookie: 1}
		if ch, a.err = c.cm.prog.NewChannel(func() bool { return sendRecord(ours, hostq.Bytes(&tick)) }); a.err == nil {
			c.cm.fds[ch.Handle] = ours
		}
	})
	if a.err != nil {
		closeAll([]int{ours, theirs})
		return a
	}
	a.msg, a.err = handle(ch.Handle)
	a.fds = []int{theirs}
	return a
}

func doCMDestroyChannel(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	if err := c.cm.prog.CloseChannel(m.Handle); err != nil {
		return nil, err
	}
	unix.Close(c.cm.fds[m.Handle])
	delete(c.cm.fds, m.Handle)
	return header()
}

func doCMGetEvent(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	ch, err := c.cm.prog.Channel(m.Handle)
	if err != nil {
		return nil, err
	}
	e, ok := ch.Get()
	if !ok {
		return nil, unix.ENODATA
	}
	p := &e.Param
	r := hostq.CMEvent{ID: e.ID.Handle, Event: uint32(e.Kind), Status: e.Status, Group: e.Group,
		Param: hostq.CMParam{QPN: p.QPN, QKey: p.QKey, ResponderResources: p.RespRes, InitiatorDepth: p.InitDepth, FlowControl: byteOf(p.Flow),
			RetryCount: p.Retry, RNRRetryCount: p.RNR, SRQ: byteOf(p.SRQ)}}
	if e.Listen != nil {
		r.ListenID = e.Listen.Handle
	}
	if p.UD {
		r.AH = hostq.AHAttr{DGID: p.GID, SGIDIndex: p.SGIDIndex, HopLimit: p.HopLimit, TrafficClass: p.TClass, IsGlobal: 1, PortNum: 1}
	}
	r.Param.PrivateLen = uint16(copy(r.PrivateData[:], e.Private))
	return hostq.Bytes(&r), nil
}

func byteOf(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func doCMCreateID(c *client, m *hostq.CMCreate, _ mono.Time) ([]byte, error) {
	if m.PS > 0xffff || m.QPType > 0xff {
		return nil, unix.EINVAL
	}
	id, err := c.cm.prog.NewID(m.Channel, cm.PortSpace(m.PS), uint8(m.QPType))
	if err != nil {
		return nil, err
	}
	return handle(id.Handle)
}

// counted says how many events an object had, and how many signals are for none now.
func counted(taken uint32, signals int) ([]byte, error) {
	r := hostq.DestroyReply{CompEvents: taken, AsyncEvents: uint32(signals)}
	return hostq.Bytes(&r), nil
}

func fromCMAddr(a *hostq.CMAddr) (netip.AddrPort, error) {
	switch a.Family {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Addr[12:])), a.Port), nil
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), a.Port), nil
	case 0:
		return netip.AddrPort{}, nil
	}
	return netip.AddrPort{}, unix.EAFNOSUPPORT
}

func toCMAddr(a netip.AddrPort) (r hostq.CMAddr) {
	if !a.IsValid() {
		return r
	}
	r = hostq.CMAddr{Family: unix.AF_INET6, Port: a.Port(), Addr: a.Addr().As16()}
	if a.Addr().Is4() {
		r.Family = unix.AF_INET
	}
	return r
}

func doCMResolveAddr(id *cm.ID, m *hostq.CMAddrs, now mono.Time) ([]byte, error) {
	src, err := fromCMAddr(&m.Src)
	if err != nil {
		return nil, err
	}
	dst, err := fromCMAddr(&m.Dst)
	if err != nil {
		return nil, err
	}
	return done(id.ResolveAddr(now, src, dst))
}

func doCMQuery(c *client, m *hostq.Handle, _ mono.Time) ([]byte, error) {
	id, err := c.cm.prog.ID(m.Handle)
	if err != nil {
		return nil, err
	}
	i := id.Info()
	r := hostq.CMInfo{Src: toCMAddr(i.Src), Dst: toCMAddr(i.Dst), SGID: i.SGID, DGID: i.DGID, PS: uint32(i.PS), QPType: uint32(i.QPType), MTU: i.MTU,
		TrafficClass: i.TClass, HopLimit: 64}
	if i.NIC >= 0 {
		r.GUID, r.PortNum = bigEndian(c.d.nics[i.NIC].GUID()), 1
	}
	return hostq.Bytes(&r), nil
}

// withPrivate checks the length of private data and takes a request's parameters out.
func withPrivate(m *hostq.CMConn, f func(p cm.Param, private []byte) error) error {
	q := &m.Param
	if int(q.PrivateLen) > len(m.PrivateData) {
		return unix.EINVAL
	}
	return f(cm.Param{QPN: q.QPN & 0xffffff, QKey: q.QKey, RespRes: q.ResponderResources, InitDepth: q.InitiatorDepth, Flow: q.FlowControl != 0,
		SRQ: q.SRQ != 0, Retry: q.RetryCount, RNR: q.RNRRetryCount}, m.PrivateData[:q.PrivateLen])
}

func doCMQPAttr(id *cm.ID, m *hostq.CMArg, _ mono.Time) ([]byte, error) {
	var r hostq.ModifyQP
	if err := id.QPAttr(m.Arg, &r); err != nil {
		return nil, err
	}
	return hostq.Bytes(&r), nil
}

func doCMSetOption(id *cm.ID, m *hostq.CMOption, _ mono.Time) ([]byte, error) {
	const levelID = 0
	if m.Level != levelID {
		return nil, unix.EOPNOTSUPP
	}
	return done(id.Set(m.Name, m.Value))
}

func doCMMigrate(c *client, m *hostq.CMArg, _ mono.Time) ([]byte, error) {
	id, err := c.cm.prog.ID(m.ID)
	if err != nil {
		return nil, err
	}
	ch, err := c.cm.prog.Channel(m.Arg)
	if err != nil {
		return nil, err
	}
	signals := id.Migrate(ch)
	return counted(id.Taken(), signals)
}

func doCMJoin(id *cm.ID, m *hostq.CMAddrs, _ mono.Time) ([]byte, error) {
	a, err := fromCMAddr(&m.Dst)
	if err != nil {
		return nil, err
	}
	h, err := id.Join(a.Addr())
	if err != nil {
		return nil, err
	}
	return handle(h)
}

// cmStatus counts what connection management has of a NIC.
func (d *Daemon) cmStatus(n *device.NIC) (s api.Connections) {
	nic := slices.Index(d.nics, n)
	d.cm.Walk(func(id *cm.ID) {
		i := id.Info()
		mine := i.NIC == nic
		if mine {
			s.IDs++
		}
		if id.Listening() && (mine || i.NIC < 0 && id.Of().Sees(nic)) {
			s.Listeners++
			s.Waiting += i.Waiting
		}
	})
	return s
}

// cmCounters adds connection management's counters.
func (d *Daemon) cmCounters(to map[string]uint64) {
	c := &d.cm.S
	for attr := cm.REQ; attr <= cm.SIDRREP; attr++ {
		kind := strings.ToLower(attr.String())
		to["mroce_cm_tx_"+kind+"_total"], to["mroce_cm_rx_"+kind+"_total"] = c.Tx[attr], c.Rx[attr]
	}
	to["mroce_cm_ids"], to["mroce_cm_exchanges"] = uint64(d.cm.IDs), uint64(d.cm.Conns())
	to["mroce_cm_established_total"], to["mroce_cm_rejected_total"] = c.Established, c.Rejected
	to["mroce_cm_retransmits_total"], to["mroce_cm_timeouts_total"], to["mroce_cm_stale_total"] = c.Retransmits, c.Timeouts, c.Stale
	to["mroce_cm_drop_mad_total"], to["mroce_cm_drop_unknown_total"], to["mroce_cm_drop_state_total"] = c.DropMad, c.DropUnknown, c.DropState
	to["mroce_cm_drop_queue_total"] = d.madsLost.Load()
	to["mroce_cm_drop_backlog_total"], to["mroce_cm_drop_limit_total"], to["mroce_cm_drop_target_total"] = c.DropBacklog, c.DropLimit, c.DropNoTarget
}
