package udp

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire"
)

// Plain RoCEv2 packets. Their ICRC covers the UDP source port and the IPv4 ID. The kernel sends ID 0 from sockets that
// may not fragment, as long as it does not cut trains into datagrams: so these packets go one a datagram. The source
// port is that of one of our sockets, not what the engine chose, so the ICRC is made to fit it on the way out. The
// receiving wire reports the port that it saw, and the two agree.

const (
	icrcLen = wire.ICRCLen
	// metaroceOps are the opcodes of BTH whose ICRC covers nothing outside BTH.
	metaroceOps = 0xc0
	// behindPort is what the ICRC covers behind the UDP source port, up to the BTH: destination port, length, checksum.
	behindPort = 6
)

var zeros [1 << 16]byte

func plainRoCE(q *pkt.Packet) bool {
	return q.Data[0] < metaroceOps && len(q.Data) >= wire.BTHLen+icrcLen
}

// icrcFrom is the packet's ICRC for the port of the socket that it leaves from.
func (p *Port) icrcFrom(q *pkt.Packet) (icrc [icrcLen]byte) {
	set, socket := p.source(q)
	n := len(q.Data) - icrcLen
	sum := binary.LittleEndian.Uint32(q.Data[n:]) ^ crcOfDifference(q.SrcPort^p.ports[set][socket], behindPort+n)
	binary.LittleEndian.PutUint32(icrc[:], sum)
	return icrc
}

// crcOfDifference is by how much the CRCs of two messages differ that are different in 16 bits with n bytes behind them.
// A CRC is linear, so that neither message need be known; one that is wrong stays wrong.
func crcOfDifference(bits uint16, n int) uint32 {
	if bits == 0 || n > len(zeros) {
		return 0
	}
	c := uint32(0) // by hand, from a register of 0: a slice of a local would be allocated
	c = crc32.IEEETable[byte(c)^byte(bits>>8)] ^ c>>8
	c = crc32.IEEETable[byte(c)^byte(bits)] ^ c>>8
	return ^crc32.Update(^c, crc32.IEEETable, zeros[:n])
}
