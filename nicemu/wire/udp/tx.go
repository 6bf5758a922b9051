package udp

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/nicemu/wire/train"
)

const (
	// A train: the kernel's UDP_MAX_SEGMENTS of old, and the length field of IP.
	trainPackets = 64
	trainBytes   = 65000
	// Control messages of a datagram, 24 bytes each: the train's segment length, then TOS. A message uses both, one
	// of them or none.
	cmsgSpace = 24
)

// message is a datagram or train that is being put together.
type message struct {
	to      rawAddr
	tos     uint8
	segment int  // length of each packet but the last
	closed  bool // no more may join: the last, shorter one is in it, or it is a plain RoCEv2 packet
	packets int
	bytes   int
	ctrl    [2 * cmsgSpace]byte
}

// txState is made once; msgs and iovs are what sendmmsg reads.
type txState struct {
	m    [pkt.Burst]message
	msgs [pkt.Burst]mmsghdr
	iovs [2 * pkt.Burst]unix.Iovec
	icrc [pkt.Burst][icrcLen]byte // of plain RoCEv2 packets
	tun  tunnel
	call func(fd int, m []mmsghdr) (int, unix.Errno) // sendmmsg; a test puts a full socket here

	// The burst in hand: the packets that can be sent, with their routes.
	ps     [pkt.Burst]*pkt.Packet
	to     [pkt.Burst]*rawAddr
	fd     [pkt.Burst]int
	direct [pkt.Burst]rawAddr // routes that are in no table
	keys   [pkt.Burst]uint64
	order  [pkt.Burst]uint8

	// held are packets of the last burst that a full socket refused, copied. While there are any, nothing more is
	// taken.
	held *pkt.Batch
}

// retry is how soon to try a full socket again.
const retry = 20 * mono.Microsecond

func (t *txState) init(packetMax int) {
	for i := range t.msgs {
		t.msgs[i].hdr.Name = &t.m[i].to.b[0]
	}
	t.tun.init()
	t.call = sendmmsg
	t.held = pkt.NewBatch(pkt.Burst, packetMax)
}

// TxBurst implements device.Port. Packets of one flow keep their order; flows are put together.
func (p *Port) TxBurst(_ mono.Time, ps []pkt.Packet) int {
	if p.closed {
		p.drops[dropClosed] += uint64(len(ps))
		return len(ps)
	}
	done := 0
	for done < len(ps) && p.sendHeld() {
		n := min(len(ps)-done, pkt.Burst)
		p.send(ps[done : done+n])
		done += n
	}
	return done
}

// sendHeld tries again what a full socket refused, and reports whether nothing is held any more.
func (p *Port) sendHeld() bool {
	h := p.tx.held
	if h.N == 0 {
		return true
	}
	first := p.route(h.Pkts[:h.N])
	if sent := p.flush(first); sent < first {
		// Buffers change places, none is lost. The routes are in order again, as hold made them.
		for i := range first - sent {
			h.Pkts[i], h.Pkts[sent+i] = h.Pkts[sent+i], h.Pkts[i]
		}
		h.N = first - sent
		return false
	}
	h.Reset()
	return true
}

// send takes a burst; what a full socket refuses is held.
func (p *Port) send(ps []pkt.Packet) {
	n := p.route(ps)
	for i := p.flush(n); i < n; i++ {
		q := p.tx.ps[p.tx.order[i]]
		h := p.tx.held.Next()
		buf, data := h.Buf, h.Data
		*h = *q
		h.Buf, h.Data = buf, append(data, q.Data...)
	}
}

// route finds socket and UDP address of each packet of a burst, orders them by flow and returns how many can be sent.
// Frames go at once.
func (p *Port) route(ps []pkt.Packet) int {
	t := &p.tx
	n := 0
	for i := range ps {
		q := &ps[i]
		if q.Kind == pkt.Ethernet {
			p.sendFrame(q)
			continue
		}
		if q.Dst.IsMulticast() && p.peers.to[q.Dst] == nil {
			p.sendInside(q, nil)
			continue
		}
		if to := p.peers.second[q.Dst]; to != nil {
			p.sendInside(q, to)
			continue
		}
		to, id, why := p.routeOne(q, &t.direct[n])
		if why != drops {
			p.drops[why]++
			continue
		}
		set, socket := p.source(q)
		t.ps[n], t.to[n], t.fd[n] = q, to, p.sources[set][socket]
		t.keys[n] = id<<24 | uint64(set)<<16 | uint64(socket)<<8 | uint64(q.TOS)
		n++
	}
	train.Order(t.keys[:n], &t.order)
	return n
}

// flush sends the burst in hand, n packets, and returns how many (in the burst's order) went before a socket was full.
func (p *Port) flush(n int) int {
	sent := 0
	for sent < n {
		k, full := p.sendRun(sent, n)
		sent += k
		if full {
			break
		}
	}
	return sent
}

// sendRun sends the packets from the given one on that share a socket, and returns how many were settled and whether
// the socket is full.
func (p *Port) sendRun(from, n int) (settled int, full bool) {
	t := &p.tx
	msgs, iovs, fd := 0, 0, t.fd[t.order[from]]
	for _, i := range t.order[from:n] {
		q, to := t.ps[i], t.to[i]
		if t.fd[i] != fd {
			break
		}
		if msgs == 0 || !p.join(&t.m[msgs-1], q, to) {
			t.m[msgs].begin(q, to)
			h := &t.msgs[msgs].hdr
			h.Namelen, h.Iov, h.Iovlen = to.n, &t.iovs[iovs], 0
			msgs++
		}
		n := len(q.Data)
		if plainRoCE(q) {
			n -= icrcLen
			t.icrc[msgs-1] = p.icrcFrom(q)
			t.iovs[iovs+1].Base, t.iovs[iovs+1].Len = &t.icrc[msgs-1][0], icrcLen
		}
		t.iovs[iovs].Base, t.iovs[iovs].Len = &q.Data[0], uint64(n)
		k := 1 + (len(q.Data)-n)/icrcLen
		t.msgs[msgs-1].hdr.Iovlen += uint64(k)
		iovs += k
	}
	for i := range msgs {
		p.control(&t.m[i], &t.msgs[i].hdr)
	}
	return p.transmit(fd, msgs)
}

func (m *message) begin(q *pkt.Packet, to *rawAddr) {
	m.to, m.tos = *to, q.TOS
	//= MR-COEX-012
	m.segment, m.closed = len(q.Data), plainRoCE(q)
	m.packets, m.bytes = 1, len(q.Data)
}

// join adds a packet to a train when it may be the next one there.
func (p *Port) join(m *message, q *pkt.Packet, to *rawAddr) bool {
	n := len(q.Data)
	if !p.trains || m.closed || n > m.segment || m.packets == trainPackets || m.bytes+n > trainBytes ||
		q.TOS != m.tos || *to != m.to || plainRoCE(q) {
		return false
	}
	m.closed = n < m.segment
	m.packets++
	m.bytes += n
	return true
}

// routeOne finds the UDP address of a packet's destination and a number for it, or why there is none. drops means
// found.
func (p *Port) routeOne(q *pkt.Packet, direct *rawAddr) (*rawAddr, uint64, drop) {
	switch {
	case len(q.Data) > p.caps.PacketMax:
		return nil, 0, dropTooLong
	case len(q.Data) == 0:
		return nil, 0, dropShort
	}
	if to := p.peers.to[q.Dst]; to != nil {
		return &to.name, to.id, drops
	}
	if q.Dst.Is6() != p.v6 {
		return nil, 0, dropFamily
	}
	direct.set(q.Dst, DefaultPort, 0)
	return direct, train.Hash(q.Dst), drops
}

// source picks the sending socket: the address of ours says which eight, the entropy which of them.
func (p *Port) source(q *pkt.Packet) (set, socket int) {
	for i := range min(len(p.addrs), len(p.sources)) {
		if p.addrs[i] == q.Src {
			set = i
			break
		}
	}
	return set, int(q.SrcPort * 40503 >> 13) // golden ratio: neighbouring entropies spread
}

// control attaches the control messages that m needs.
func (p *Port) control(m *message, h *unix.Msghdr) {
	from, to := cmsgSpace, cmsgSpace
	if m.packets > 1 {
		from = 0
		putCmsg(m.ctrl[:], unix.SOL_UDP, unix.UDP_SEGMENT, 2)
		binary.NativeEndian.PutUint16(m.ctrl[16:], uint16(m.segment))
	}
	if m.tos != 0 {
		to = 2 * cmsgSpace
		p.putTOS(m.ctrl[cmsgSpace:], m.tos)
	}
	h.Control, h.Controllen = nil, 0
	if to > from {
		h.Control, h.Controllen = &m.ctrl[from], uint64(to-from)
	}
}

// putTOS writes the control message for the IP header's TOS or traffic class.
func (p *Port) putTOS(b []byte, tos uint8) {
	level, name := unix.IPPROTO_IP, unix.IP_TOS
	if p.v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	putCmsg(b, level, name, 4)
	binary.NativeEndian.PutUint32(b[16:], uint32(tos))
}

func putCmsg(b []byte, level, name, n int) {
	binary.NativeEndian.PutUint64(b, uint64(16+n))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(name))
}

// transmit sends the first n messages and returns how many packets are settled when all went or the socket was full.
func (p *Port) transmit(fd, n int) (settled int, full bool) {
	t := &p.tx
	for k := 0; k < n; {
		sent, errno := t.call(fd, t.msgs[k:n])
		for range sent {
			m := &t.m[k]
			p.stats.TxPackets += uint64(m.packets)
			p.stats.TxBytes += uint64(m.bytes)
			settled += m.packets
			k++
		}
		if sent > 0 {
			continue
		}
		m := &t.m[k]
		var why drop
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN, unix.ENOBUFS:
			return settled, true
		case unix.EIO, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOPROTOOPT:
			if m.packets > 1 { // the device cannot: single datagrams from now on, these first
				p.trains = false
				return settled, false
			}
			why = dropSendError
		case unix.EMSGSIZE:
			why = dropTooLong
		case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EPERM, unix.EACCES, unix.EADDRNOTAVAIL, unix.ECONNREFUSED:
			why = dropUnreachable
		default:
			why = dropSendError
		}
		p.drops[why] += uint64(m.packets)
		settled += m.packets
		k++
	}
	return settled, false
}
