package udp

import (
	"encoding/binary"
	"hash/crc32"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// A frame of the host port travels as a packet of opcode 0xD8:
//
//	BTH 12 · MPH 16 · frame · pad 0-3 · ICRC 4
//
// MPH's path id is the port where the sender's plane receives: frames to the MACs behind it go there. A plane is a
// switch: it learns which peer has a MAC, and floods what it does not know to all peers.
const (
	tunnelHead = wire.BTHLen + wire.MPHLen
	tunnelTail = 3 + wire.ICRCLen
)

type tunnel struct {
	head [tunnelHead]byte
	tail [tunnelTail]byte
	name rawAddr
	msg  [1]mmsghdr
	iovs [3]unix.Iovec
	ctrl [cmsgSpace]byte

	frame [1 << 14]byte // of a packet inside
}

func (t *tunnel) init() {
	h := &t.msg[0].hdr
	h.Name, h.Iov, h.Iovlen = &t.name.b[0], &t.iovs[0], 3
	t.iovs[0].Base, t.iovs[0].Len = &t.head[0], tunnelHead
	t.iovs[2].Base = &t.tail[0]
}

// sendFrame sends a frame to the peer with its MAC, or to all. What a full socket refuses is lost, as on Ethernet.
func (p *Port) sendFrame(q *pkt.Packet) {
	f := q.Data
	switch {
	case len(f) < 14:
		p.drops[dropShort]++
		return
	case len(f) > p.FrameMax():
		p.drops[dropTooLong]++
		return
	}
	p.tx.tun.build(f, p.local.Port())
	if to, ok := p.peers.macs[[6]byte(f[0:6])]; ok {
		p.sendTunnel(&to, len(f), 0)
		return
	}
	p.flood(len(f), 0)
}

// flood sends what is built, a frame of n bytes, to all peers.
func (p *Port) flood(n int, tos uint8) {
	if len(p.peers.list) == 0 {
		p.drops[dropNoPeer]++
	}
	for _, to := range p.peers.list {
		p.sendTunnel(&to.name, n, tos)
	}
}

// FrameMax is the longest frame of a host port that the plane carries.
func (p *Port) FrameMax() int { return (p.caps.PacketMax - tunnelHead - wire.ICRCLen) &^ 3 }

func (t *tunnel) build(f []byte, port uint16) {
	h := wire.Header{Op: wire.OpEthernet, Path: port}
	pad := h.PadFor(len(f))
	h.Put(t.head[:])
	crc := crc32.Update(crc32.ChecksumIEEE(t.head[:]), crc32.IEEETable, f)
	clear(t.tail[:pad])
	crc = crc32.Update(crc, crc32.IEEETable, t.tail[:pad])
	binary.LittleEndian.PutUint32(t.tail[pad:], crc)
	t.iovs[1].Base, t.iovs[1].Len = &f[0], uint64(len(f))
	t.iovs[2].Len = uint64(pad + wire.ICRCLen)
}

// sendTunnel sends what is built, n bytes in a tunnel, in the class and with the ECN bits of what is inside.
func (p *Port) sendTunnel(to *rawAddr, n int, tos uint8) {
	t := &p.tx.tun
	h := &t.msg[0].hdr
	t.name, h.Namelen = *to, to.n
	if h.Control, h.Controllen = nil, 0; tos != 0 {
		p.putTOS(t.ctrl[:], tos)
		h.Control, h.Controllen = &t.ctrl[0], cmsgSpace
	}
	if sent, _ := sendmmsg(p.sources[0][0], t.msg[:]); sent != 1 {
		p.drops[dropSendError]++
		return
	}
	p.stats.TxPackets++
	p.stats.TxBytes += uint64(n + tunnelHead + wire.ICRCLen)
}

// untunnel returns the frame in a packet of opcode 0xD8, nil when there is none, and learns from message i
// where its sender is.
func (p *Port) untunnel(data []byte, i int) []byte {
	var h wire.Header
	f, d := wire.Decode(data, &h)
	if d != wire.Accepted || len(f) < 14 {
		return nil
	}
	src := [6]byte(f[6:12])
	if old, there := p.peers.macs[src]; src[0]&1 == 0 && (there || len(p.peers.macs) < macsMax) {
		at := p.rx.names[i]
		at.setPort(h.Path)
		if at != old {
			p.peers.macs[src] = at
		}
	}
	return f
}
