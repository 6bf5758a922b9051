package tap

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/nicemu/wire/train"
)

const (
	// A super-packet: the kernel's UDP_MAX_SEGMENTS of old, and the length field of IP.
	trainPackets = 64
	trainBytes   = 65000
	// metaroceOps are the opcodes of BTH whose ICRC covers nothing outside BTH.
	metaroceOps = 0xc0

	headMax = ether.HeadLen + ether.IPv6Len + ether.UDPLen
)

type txState struct {
	ps    [pkt.Burst]*pkt.Packet // of the burst in hand, those that can be sent
	macs  [pkt.Burst]ether.MAC
	keys  [pkt.Burst]uint64
	order [pkt.Burst]uint8

	head [vnetHdrLen + headMax]byte
	iovs [1 + trainPackets]unix.Iovec
}

// TxBurst implements device.Port. It takes everything: a TAP has no queue on this side. Packets of one flow (addresses,
// entropy, TOS) keep their order; flows are put together.
func (p *Port) TxBurst(now mono.Time, ps []pkt.Packet) int {
	if p.dev.fd < 0 {
		p.drops[dropClosed] += uint64(len(ps))
		return len(ps)
	}
	for rest := ps; len(rest) > 0; {
		n := min(len(rest), pkt.Burst)
		p.send(now, rest[:n])
		rest = rest[n:]
	}
	return len(ps)
}

// send resolves a burst, orders it by flow and writes it.
func (p *Port) send(now mono.Time, ps []pkt.Packet) {
	t := &p.tx
	n := 0
	var last *ether.Neigh
	for i := range ps {
		q := &ps[i]
		//= MR-WIRE-095
		if q.Kind == pkt.Ethernet {
			p.sendFrame(q.Data)
			continue
		}
		if why := p.check(q); why != drops {
			p.drops[why]++
			continue
		}
		if q.Dst.IsMulticast() {
			t.macs[n] = ether.MulticastMAC(q.Dst)
		} else {
			if last == nil || last.Addr != q.Dst {
				last = p.near.Lookup(now, q.Src, q.Dst)
			}
			if !last.Known {
				if !p.near.Keep(now, last, q) {
					p.drops[dropUnresolved]++
				}
				continue
			}
			t.macs[n] = last.MAC
		}
		t.ps[n] = q
		t.keys[n] = flowKey(q)
		n++
	}
	p.sendOrdered(n)
}

func flowKey(q *pkt.Packet) uint64 {
	return train.Hash(q.Dst)<<24 ^ train.Hash(q.Src)<<40 ^ uint64(q.SrcPort)<<8 ^ uint64(q.TOS)
}

// sendOrdered writes the first n packets in hand, flow by flow.
func (p *Port) sendOrdered(n int) {
	t := &p.tx
	train.Order(t.keys[:n], &t.order)
	for k := 0; k < n; {
		k += p.sendRun(t.order[k:n])
	}
}

// check says why a packet cannot be sent at all, or drops.
func (p *Port) check(q *pkt.Packet) drop {
	switch {
	case len(q.Data) == 0:
		return dropShort
	case !q.Dst.IsValid() || q.Src.Is4() != q.Dst.Is4() || !q.Src.IsValid():
		return dropFamily
	case ether.HeadersLen(q.Dst)-ether.HeadLen+len(q.Data) > p.mtu:
		return dropTooLong
	}
	return drops
}

// sendRun writes the packet at the start of order, and as many behind it as make one super-packet. It returns how many.
func (p *Port) sendRun(order []uint8) int {
	t := &p.tx
	first := t.ps[order[0]]
	size, bytes, n := len(first.Data), len(first.Data), 1
	t.iovs[1].Base, t.iovs[1].Len = &first.Data[0], uint64(size)
	if p.dev.trains && first.Data[0] >= metaroceOps {
		for _, i := range order[1:min(len(order), trainPackets)] {
			q := t.ps[i]
			m := len(q.Data)
			if m > size || bytes+m > trainBytes || q.Data[0] < metaroceOps || q.SrcPort != first.SrcPort || q.TOS != first.TOS ||
				q.Dst != first.Dst || q.Src != first.Src || q.TTL != first.TTL || q.FlowLabel != first.FlowLabel {
				break
			}
			n++
			bytes += m
			t.iovs[n].Base, t.iovs[n].Len = &q.Data[0], uint64(m)
			if m < size { // only the last may be shorter
				break
			}
		}
	}
	p.headers(first, t.macs[order[0]], size, bytes, n > 1)
	switch errno := p.dev.writev(p.dev.fd, t.iovs[:1+n]); {
	case errno == 0:
		p.stats.TxPackets += uint64(n)
		p.stats.TxBytes += uint64(bytes)
	case n > 1 && (errno == unix.EINVAL || errno == unix.EOPNOTSUPP):
		p.dev.trains = false // the kernel takes none after all: these again, one by one
		return 0
	default:
		p.drops[sendError(errno)] += uint64(n)
	}
	return n
}

// headers fills the first piece: virtio header, Ethernet, IP, UDP.
func (p *Port) headers(q *pkt.Packet, dst ether.MAC, size, bytes int, super bool) {
	t := &p.tx
	v := 0
	if p.dev.vnet {
		v = vnetHdrLen
	}
	h := t.head[:v+ether.HeadersLen(q.Dst)]
	ether.PutHeaders(h[v:], dst, p.near.MAC, q, bytes, super)
	if p.dev.vnet {
		clear(h[:v])
	}
	if super {
		udp := len(h) - v - ether.UDPLen
		h[0], h[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_UDP_L4
		binary.NativeEndian.PutUint16(h[2:], uint16(len(h)-v))
		binary.NativeEndian.PutUint16(h[4:], uint16(size))
		binary.NativeEndian.PutUint16(h[6:], uint16(udp)) // checksum from here
		binary.NativeEndian.PutUint16(h[8:], 6)           // its place there
	}
	t.iovs[0].Base, t.iovs[0].Len = &h[0], uint64(len(h))
}

// sendFrame writes a frame of the host port.
func (p *Port) sendFrame(f []byte) {
	switch {
	case len(f) < ether.HeadLen:
		p.drops[dropShort]++
		return
	case len(f) > ether.FrameMax(f, p.mtu):
		p.drops[dropTooLong]++
		return
	}
	if p.write(f) {
		p.stats.TxPackets++
		p.stats.TxBytes += uint64(len(f))
	}
}

// control writes a frame of our own (ARP, ND), which is in nobody's statistics.
func (p *Port) control(f []byte) { p.write(f) }

func (p *Port) write(f []byte) bool {
	if errno := p.dev.Write(f); errno != 0 {
		p.drops[sendError(errno)]++
		return false
	}
	return true
}

func sendError(errno unix.Errno) drop {
	switch errno {
	case unix.EIO, unix.EBADFD:
		return dropLinkDown
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		return dropTxFull
	default:
		return dropTxError
	}
}

// sendKept sends the packets that waited for an address.
func (p *Port) sendKept(e *ether.Neigh) {
	if e == nil || len(e.Held) == 0 {
		return
	}
	t := &p.tx
	for i, q := range e.Held {
		t.ps[i], t.macs[i] = q, e.MAC
		t.keys[i] = flowKey(q)
	}
	p.sendOrdered(len(e.Held))
	p.near.Drop(e)
}

// accepts says whether a packet to a is for the NIC: to one of its addresses, or to a group that it is in.
func (p *Port) accepts(a netip.Addr) bool {
	if !a.IsMulticast() {
		return p.near.Own(a)
	}
	return p.groups.Has(a)
}
