package devicetest

import (
	"net/netip"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// Wire is one end of a lossless wire in memory between two ports. Both must be used by one goroutine.
type Wire struct {
	peer    *Wire
	rx      [][]byte
	meta    []pkt.Packet
	free    [][]byte // buffers that were delivered and read
	Down    bool
	Refuse  bool // takes nothing
	out     [][]byte
	Addrs   []netip.Addr
	MaxData int
}

// NewWire makes a wire and returns its two ends.
func NewWire(packetMax int) (a, b *Wire) {
	a, b = &Wire{MaxData: packetMax}, &Wire{MaxData: packetMax}
	a.peer, b.peer = b, a
	return a, b
}

// Caps implements device.Port.
func (w *Wire) Caps() device.PortCaps {
	return device.PortCaps{Name: "test:", Kind: "test", PacketMax: w.MaxData, TimerNoise: 2 * mono.Millisecond, EthernetOK: true}
}

// SetAddrs implements device.Port.
func (w *Wire) SetAddrs(a []netip.Addr) { w.Addrs = a }

// RxBurst implements device.Port.
func (w *Wire) RxBurst(now mono.Time, ps []pkt.Packet) int {
	n := min(len(ps), len(w.meta))
	w.free = append(w.free, w.out...)
	w.out = append(w.out[:0], w.rx[:n]...)
	for i := range n {
		ps[i] = w.meta[i]
		ps[i].Data, ps[i].Time = w.out[i], now
	}
	w.rx = append(w.rx[:0], w.rx[n:]...)
	w.meta = append(w.meta[:0], w.meta[n:]...)
	return n
}

// TxBurst implements device.Port.
func (w *Wire) TxBurst(_ mono.Time, ps []pkt.Packet) int {
	if w.Refuse {
		return 0
	}
	for i := range ps {
		p := ps[i]
		p.Buf = nil
		if w.Down || w.peer.Down {
			continue
		}
		var buf []byte
		if k := len(w.peer.free); k > 0 {
			buf, w.peer.free = w.peer.free[k-1][:0], w.peer.free[:k-1]
		} else {
			buf = make([]byte, 0, w.MaxData)
		}
		w.peer.rx = append(w.peer.rx, append(buf, p.Data...))
		w.peer.meta = append(w.peer.meta, p)
	}
	return len(ps)
}

// LinkUp implements device.Port.
func (w *Wire) LinkUp() bool { return !w.Down && !w.peer.Down }

// NextWake implements device.Port.
func (w *Wire) NextWake() mono.Time {
	if len(w.meta) > 0 {
		return 0
	}
	return mono.Never
}

// FDs implements device.Port.
func (w *Wire) FDs() []int { return nil }

// Stats implements device.Port.
func (w *Wire) Stats() device.PortStats { return device.PortStats{} }

// Close implements device.Port.
func (w *Wire) Close() error { return nil }
