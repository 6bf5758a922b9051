//go:build dpdk

package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// hubPorts are NICs that share a port whose every queue sends to itself, and an end of each queue without a hub, for frames
// that come from the world.
type hubPorts struct {
	nics  []*Port
	world []*dpdkx.Queue
}

// shared makes them; queues is how many pairs of queues the port has.
func shared(t *testing.T, n, queues int) *hubPorts {
	t.Helper()
	before := memory.InUse()
	if queues == 1 {
		oneQueue = append(oneQueue, "net_ring")
		defer func() { oneQueue = oneQueue[:len(oneQueue)-1] }()
	}
	first, err := Open(vdev("net_ring"), Options{MTU: mtu, Memory: memory, Shards: n, MAC: [6]byte{2, 1}})
	if err != nil {
		t.Fatal(err)
	}
	h := &hubPorts{nics: []*Port{first}}
	for i := 1; i < n; i++ {
		p, err := Share(first, i, Options{MAC: [6]byte{2, 1, byte(i)}})
		if err != nil {
			t.Fatal(err)
		}
		h.nics = append(h.nics, p)
	}
	if _, err := Share(first, 1, Options{}); err == nil {
		t.Error("a place was given twice")
	}
	for i, p := range h.nics {
		p.SetAddrs([]netip.Addr{hubAddr(i)})
	}
	for q := range queues {
		h.world = append(h.world, dpdkx.NewQueue(first.id, uint16(q), memory.pool))
	}
	if !first.LinkUp() || !h.nics[1].LinkUp() {
		t.Fatal("no link")
	}
	t.Cleanup(func() {
		h.drain()
		for _, q := range h.world {
			q.Free()
		}
		for i := n - 1; i >= 0; i-- {
			if err := h.nics[i].Close(); err != nil {
				t.Error(err)
			}
		}
		if after := memory.InUse(); after != before {
			t.Errorf("%d buffers in use before, %d after", before, after)
		}
	})
	return h
}

func hubAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}) }

// drain takes what is under way.
func (h *hubPorts) drain() {
	var ps [pkt.Burst]pkt.Packet
	for range 64 {
		for _, p := range h.nics {
			p.RxBurst(now(), ps[:])
		}
	}
}

// meet lets each learn where all others are.
func (h *hubPorts) meet(t *testing.T) {
	t.Helper()
	for range 3 {
		for i, p := range h.nics {
			for j := range h.nics {
				if i != j {
					p.Resolve(now(), hubAddr(i), hubAddr(j))
				}
			}
		}
		h.drain()
	}
	for i, p := range h.nics {
		for j, o := range h.nics {
			if e := p.near.Lookup(now(), hubAddr(i), hubAddr(j)); i != j && (!e.Known || e.MAC != o.near.MAC) {
				t.Fatalf("%d does not know %d: %+v", i, j, e)
			}
		}
	}
}

// inject lets the world send a frame to a queue.
func (h *hubPorts) inject(t *testing.T, queue int, to [6]byte, text string) {
	t.Helper()
	q := h.world[queue]
	q.Refill()
	buf := q.Take()
	f := buf[pkt.Headroom : pkt.Headroom+60]
	clear(f)
	copy(f, to[:])
	copy(f[6:], []byte{2, 9})
	binary.BigEndian.PutUint16(f[12:], 0x88b5) // local experiments
	copy(f[14:], text)
	if !q.TxOne(buf, pkt.Headroom, len(f)) {
		t.Fatal("not sent")
	}
}

// take is what a NIC gets now: its RoCE packets, and the texts of frames like inject's.
func (h *hubPorts) take(i int) (roce []pkt.Packet, texts []string) {
	var ps [pkt.Burst]pkt.Packet
	for range 8 {
		for _, p := range ps[:h.nics[i].RxBurst(now(), ps[:])] {
			switch {
			case p.Kind == pkt.RoCE:
				p.Data = bytes.Clone(p.Data)
				roce = append(roce, p)
			case binary.BigEndian.Uint16(p.Data[12:]) == 0x88b5:
				text, _, _ := bytes.Cut(p.Data[14:], []byte{0})
				texts = append(texts, string(text))
			}
		}
	}
	return roce, texts
}

func (h *hubPorts) texts(i int) []string {
	_, texts := h.take(i)
	return texts
}

// TestSteering: whatever queue a frame comes in on, who it is for gets it, and a frame to all all of them, once.
func TestSteering(t *testing.T) {
	for _, queues := range []int{1, 3} {
		t.Run(fmt.Sprint(queues, " queues"), func(t *testing.T) {
			h := shared(t, 3, queues)
			for q := range queues {
				for i, p := range h.nics {
					h.inject(t, q, p.near.MAC, fmt.Sprint("to ", i))
				}
				h.inject(t, q, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "to all")
				h.inject(t, q, [6]byte{2, 8, 8}, "to nobody here") // what a port that receives everything gets
				for k := range queues {
					if k != q {
						h.texts(k) // hands over what is others'; nothing yet
					}
				}
				first := h.texts(q)
				for i := range h.nics {
					got := first
					if i != q {
						got = h.texts(i)
					}
					want := []string{fmt.Sprint("to ", i), "to all"}
					if i == q {
						want = append(want, "to nobody here")
					}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("queue %d, NIC %d: %q, want %q", q, i, got, want)
					}
				}
			}
		})
	}
}

// TestBetween: NICs of a port reach each other without it, and the world by it, in order, with a queue of their own or without.
func TestBetween(t *testing.T) {
	for _, queues := range []int{1, 2} {
		t.Run(fmt.Sprint(queues, " queues"), func(t *testing.T) {
			h := shared(t, 2, queues)
			h.meet(t)
			for from := range 2 {
				var ps []pkt.Packet
				for k := range 40 {
					if k%2 == 0 {
						ps = append(ps, lent(t, h.nics[from], uint32(k), 1000+k, hubAddr(from), hubAddr(1-from)))
						continue
					}
					f := make([]byte, 60)
					copy(f, []byte{2, 8, 8})
					f[12], f[13] = 0x88, 0xb5
					copy(f[14:], fmt.Sprint(k))
					ps = append(ps, pkt.Packet{Kind: pkt.Ethernet, Data: f})
				}
				if n := h.nics[from].TxBurst(now(), ps); n != len(ps) {
					t.Fatalf("%d of %d taken", n, len(ps))
				}
				giveBack(h.nics[from], ps)
				home := from // the queue returns what it sends
				if queues == 1 {
					home = 0
				}
				got, odd := h.take(1 - from)
				for k, p := range got {
					if len(p.Data) != 1000+2*k || p.Src != hubAddr(from) {
						t.Fatalf("packet %d: %d bytes from %v", k, len(p.Data), p.Src)
					}
				}
				if len(got) != 20 {
					t.Errorf("%d of 20 arrived", len(got))
				}
				if home == from {
					odd = h.texts(home)
				}
				if len(odd) != 20 || odd[0] != "1" || odd[19] != "39" {
					t.Errorf("from %d into the world: %q", from, odd)
				}
			}
		})
	}
}

// TestNeighbourFull: who does not take its packets loses them, counted, and no buffer is lost.
func TestNeighbourFull(t *testing.T) {
	h := shared(t, 2, 1)
	h.meet(t)
	for range dpdkx.HubRing/pkt.Burst + 2 {
		var ps []pkt.Packet
		for k := range pkt.Burst {
			ps = append(ps, lent(t, h.nics[1], uint32(k), 100, hubAddr(1), hubAddr(0)))
		}
		if n := h.nics[1].TxBurst(now(), ps); n != len(ps) {
			t.Fatalf("%d taken", n)
		}
		giveBack(h.nics[1], ps)
	}
	lost := h.nics[1].Stats().Drops["neighbour_full"]
	if got := receive(h.nics[0], 1<<12); len(got)+int(lost) != dpdkx.HubRing+2*pkt.Burst || lost == 0 {
		t.Errorf("%d arrived, %d lost", len(got), lost)
	}
	// the port's turn: a guest's packets into the world, which nobody moves
	f := make([]byte, 60)
	f[0], f[12], f[13] = 2, 0x88, 0xb5
	taken := 0
	for range 2 * dpdkx.HubRing {
		taken += h.nics[1].TxBurst(now(), []pkt.Packet{{Kind: pkt.Ethernet, Data: f}})
	}
	if taken >= dpdkx.HubRing || taken < dpdkx.HubRing-pkt.Burst {
		t.Errorf("%d taken by a ring of %d", taken, dpdkx.HubRing)
	}
}

// TestWake: who sleeps is woken by whoever hands it something, and not otherwise.
func TestWake(t *testing.T) {
	h := shared(t, 2, 1)
	h.meet(t)
	readable := func(i int) bool {
		fds := []unix.PollFd{{Fd: int32(h.nics[i].FDs()[0]), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		return n == 1
	}
	send := func(from int) {
		ps := []pkt.Packet{lent(t, h.nics[from], 1, 100, hubAddr(from), hubAddr(1-from))}
		h.nics[from].TxBurst(now(), ps)
		giveBack(h.nics[from], ps)
	}
	for i := range 2 {
		send(1 - i)
		if readable(i) {
			t.Error("woken while awake")
		}
		if !h.nics[i].BeforeSleep() {
			t.Error("sleeps over what is there")
		}
		h.nics[i].AfterSleep()
		receive(h.nics[i], 1)
		for range 3 {
			if h.nics[i].BeforeSleep() || readable(i) {
				t.Fatal("work, and there is none")
			}
			send(1 - i)
			if !readable(i) {
				t.Error("not woken")
			}
			h.nics[i].AfterSleep()
			receive(h.nics[i], 1)
			if readable(i) {
				t.Error("woken again by nothing")
			}
		}
	}
	h.nics[0].BeforeSleep()
	h.nics[1].TxBurst(now(), []pkt.Packet{{Kind: pkt.Ethernet, Data: make([]byte, 60)}})
	if !readable(0) {
		t.Error("the port's keeper sleeps over others' packets")
	}
	h.nics[0].AfterSleep()
}

// TestThreads: two NICs on threads of their own send each other packets by the port's hub; all arrive whole and in order.
func TestThreads(t *testing.T) {
	h := shared(t, 2, 1)
	h.meet(t)
	const total = 50_000
	var wg sync.WaitGroup
	deadline := time.Now().Add(60 * time.Second)
	for me := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			p := h.nics[me]
			var ps, rx [pkt.Burst]pkt.Packet
			mem := make([]byte, 8*pkt.Burst)
			sent, got := uint64(0), uint64(0)
			for (sent < total || got < total) && time.Now().Before(deadline) {
				n := p.RxBurst(now(), rx[:])
				for i := range n {
					if rx[i].Kind != pkt.RoCE {
						continue
					}
					if v := binary.LittleEndian.Uint64(rx[i].Data); v != got {
						t.Errorf("NIC %d: packet %d instead of %d", me, v, got)
						return
					}
					got++
				}
				if sent < total && sent < got+256 { // as many as find room
					k := int(min(16, total-sent))
					for i := range k {
						b := mem[8*i : 8*i+8]
						binary.LittleEndian.PutUint64(b, sent+uint64(i))
						ps[i] = pkt.Packet{Data: b, Src: hubAddr(me), Dst: hubAddr(1 - me), SrcPort: 0xc000}
					}
					sent += uint64(p.TxBurst(now(), ps[:k]))
				}
				if n == 0 {
					runtime.Gosched()
				}
			}
			if got != total {
				t.Errorf("NIC %d: %d of %d", me, got, total)
			}
		}()
	}
	wg.Wait()
}

// TestNoAllocationShared: the hub does not allocate.
func TestNoAllocationShared(t *testing.T) {
	h := shared(t, 2, 1)
	h.meet(t)
	var rx [pkt.Burst]pkt.Packet
	ps := []pkt.Packet{{Data: make([]byte, 100), Src: hubAddr(1), Dst: hubAddr(0), SrcPort: 0xc000}}
	if n := testing.AllocsPerRun(1000, func() {
		h.nics[1].TxBurst(1, ps)
		h.nics[0].RxBurst(1, rx[:])
		h.nics[0].BeforeSleep()
		h.nics[0].AfterSleep()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
