package impair_test

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/daemon/impair"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
)

// sprayer sends full bursts over all planes in turns.
type sprayer struct {
	device.Engine
	planes, n int
}

func (e *sprayer) Transmit(_ mono.Time, b *pkt.Batch) {
	for p := b.Next(); p != nil; p = b.Next() {
		p.Data = p.Buf[pkt.Headroom : pkt.Headroom+100]
		p.Plane, p.Dst = uint8(e.n%e.planes), netip.AddrFrom4([4]byte{10, 0, 0, 9})
		e.n++
	}
}

// ownMemory is a wire that sends from buffers of its own: it keeps those of packets it takes, and gives others.
type ownMemory struct {
	device.Port
	made, lent map[*byte]bool
	taken      int
	t          *testing.T
}

func (w *ownMemory) TxBuffer(size int) []byte {
	b := make([]byte, pkt.Headroom+size)
	w.made[&b[0]], w.lent[&b[0]] = true, true
	return b
}

func (w *ownMemory) TxBurst(_ mono.Time, ps []pkt.Packet) int {
	for i := range ps {
		b := &ps[i].Buf[0]
		if !w.made[b] {
			continue // somebody's copy
		}
		if !w.lent[b] {
			w.t.Error("a buffer that the wire keeps was handed over again")
		}
		delete(w.lent, b)
		ps[i].Buf = w.TxBuffer(len(ps[i].Buf) - pkt.Headroom)
		w.taken++
	}
	return len(ps)
}

func (w *ownMemory) Caps() device.PortCaps {
	return device.PortCaps{Name: "own", Kind: "own", PacketMax: 4200, EthernetOK: true}
}
func (w *ownMemory) SetAddrs([]netip.Addr)               {}
func (w *ownMemory) RxBurst(mono.Time, []pkt.Packet) int { return 0 }
func (w *ownMemory) LinkUp() bool                        { return true }
func (w *ownMemory) NextWake() mono.Time                 { return mono.Never }
func (w *ownMemory) FDs() []int                          { return nil }
func (w *ownMemory) Stats() device.PortStats             { return device.PortStats{} }
func (w *ownMemory) Close() error                        { return nil }

// TestBorrowedBuffers: what a wire keeps is never handed to it again, also where something is lost on the way to it.
func TestBorrowedBuffers(t *testing.T) {
	made, lent := map[*byte]bool{}, map[*byte]bool{}
	var ports []device.Port
	var wires []*ownMemory
	for i := range 3 {
		w := &ownMemory{made: made, lent: lent, t: t}
		wires = append(wires, w)
		lossy := impair.Wrap(w, uint64(i))
		if i > 0 {
			spec, err := impair.Parse([]string{[]string{"", "loss=30%", "delay=1us"}[i]})
			if err != nil {
				t.Fatal(err)
			}
			if err := lossy.Set(0, spec); err != nil {
				t.Fatal(err)
			}
		}
		ports = append(ports, lossy)
	}
	nic, err := device.New(device.Config{Name: "a/mr0", Dev: "mr0", GUID: 1, Ports: ports, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 1})},
		NewEngine: func(c device.EngineConfig, h transport.Host) device.Engine {
			return &sprayer{Engine: devicetest.NewNet().New(c, h), planes: len(ports)}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if !nic.Borrows() {
		t.Fatal("the NIC makes its own buffers")
	}
	for i := range 50 {
		nic.Step(mono.Time(i+1) * mono.Time(mono.Millisecond))
	}
	if wires[0].taken == 0 || wires[1].taken == 0 || wires[1].taken >= wires[0].taken || wires[2].taken != 0 {
		t.Errorf("taken %d without harm, %d at a loss, %d delayed (copies)", wires[0].taken, wires[1].taken, wires[2].taken)
	}
}
