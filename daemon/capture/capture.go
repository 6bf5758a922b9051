// Package capture writes what crosses the wires of a NIC into a pcapng file that Wireshark and tshark read.
//
// A packet's way: the wrapper of a plane copies it, with addresses and time, into a ring (ring.go); a writer goroutine
// takes it from there, puts Ethernet, IP and UDP headers in front of RoCE packets (headers.go) and writes it. The
// device loop never waits: when the ring is full the packet is missing in the file and counted as lost.
//
// One file has one interface a plane; both directions are in it, told apart by their addresses. Off, the wrapper costs
// one comparison a burst.
package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// Options of a capture. Zero values are the defaults.
type Options struct {
	SnapLen int    // bytes kept of each packet after its synthesized headers; 0 = all
	Buffer  int    // bytes between the device loop and the writer; 0 = 16 MiB
	Comment string // into the file's header
}

const (
	defaultBuffer = 16 << 20
	// How often the writer looks. The loop does not wake it: a wake-up costs the loop more than a packet does. At
	// 20 Gbit/s 5 MB gather meanwhile.
	writerPeriod = 2 * time.Millisecond
)

// ErrBusy is returned by Start when a port is being captured already.
var ErrBusy = errors.New("capture: a capture of this plane is running; stop it first")

// Port is a wire with a tap on it. It implements device.Port.
type Port struct {
	device.Port
	name string
	cap  *Capture
	id   int
}

var _ device.Port = (*Port)(nil)

// Wrap puts a tap on a wire, which does nothing until Start. The name becomes the interface's in the file.
func Wrap(p device.Port, name string) *Port { return &Port{Port: p, name: name} }

// Unwrap returns the wire.
func (p *Port) Unwrap() device.Port { return p.Port }

// Capture is a running one.
type Capture struct {
	ports []*Port
	ring  *ring
	snap  int
	stop  atomic.Bool
	done  chan struct{}
	mu    sync.Mutex // of who puts into the ring: ports of NICs on several loops

	// Counted by the loop, read by anyone.
	packets, lost atomic.Uint64

	// Of the writer; others read them after done.
	w       io.WriteCloser
	ng      *pcapgo.NgWriter
	epoch   time.Time // wall time of the loop's time 0
	headers headers
	err     error
	written uint64
}

// Stats of a capture.
type Stats struct {
	Packets uint64 // seen
	Lost    uint64 // of these not in the file, because the writer was behind or failed
}

// Start captures ports into w, which it closes at the end. now and wall are the same moment on the loop's clock and on
// the calendar. Called while no port of them is in use elsewhere.
func Start(w io.WriteCloser, o Options, now mono.Time, wall time.Time, ports ...*Port) (*Capture, error) {
	if len(ports) == 0 {
		return nil, errors.New("capture: no port")
	}
	for _, p := range ports {
		if p.cap != nil {
			return nil, fmt.Errorf("%s: %w", p.name, ErrBusy)
		}
	}
	if o.Buffer == 0 {
		o.Buffer = defaultBuffer
	}
	c := &Capture{
		ports: ports, ring: newRing(o.Buffer), snap: o.SnapLen, done: make(chan struct{}),
		w: w, epoch: wall.Add(-time.Duration(now)),
	}
	if err := c.begin(o); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	for i, p := range ports {
		p.cap, p.id = c, i
	}
	go c.write()
	return c, nil
}

// begin writes the file's header and interfaces.
func (c *Capture) begin(o Options) error {
	intf := func(p *Port) pcapgo.NgInterface {
		i := pcapgo.DefaultNgInterface
		i.Name, i.LinkType, i.Description = p.name, layers.LinkTypeEthernet, p.Caps().Name
		if i.Description == "" {
			i.Description = p.Caps().Kind
		}
		return i
	}
	opts := pcapgo.DefaultNgWriterOptions
	opts.SectionInfo.Application, opts.SectionInfo.Comment = "metaroce", o.Comment
	var err error
	if c.ng, err = pcapgo.NewNgWriterInterface(bufio.NewWriterSize(c.w, 1<<20), intf(c.ports[0]), opts); err != nil {
		return err
	}
	for _, p := range c.ports[1:] {
		if _, err := c.ng.AddInterface(intf(p)); err != nil {
			return err
		}
	}
	// A reader of a growing file, and a disk that is full, are met now.
	return c.ng.Flush()
}

// Stop ends the capture. It does not wait: the file is complete when Done is closed. Called as Start is.
func (c *Capture) Stop() Stats {
	for _, p := range c.ports {
		if p.cap == c {
			p.cap = nil
		}
	}
	c.stop.Store(true)
	return c.Stats()
}

// Done is closed when the file is complete.
func (c *Capture) Done() <-chan struct{} { return c.done }

// Err says, after Done, what went wrong with the file.
func (c *Capture) Err() error { return c.err }

// Stats may be called by anyone.
func (c *Capture) Stats() Stats { return Stats{Packets: c.packets.Load(), Lost: c.lost.Load()} }

// RxBurst implements device.Port.
func (p *Port) RxBurst(now mono.Time, ps []pkt.Packet) int {
	n := p.Port.RxBurst(now, ps)
	if p.cap != nil {
		p.cap.record(now, p.id, ps[:n])
	}
	return n
}

// TxBurst implements device.Port. Only what the wire took is captured.
func (p *Port) TxBurst(now mono.Time, ps []pkt.Packet) int {
	n := p.Port.TxBurst(now, ps)
	if p.cap != nil {
		p.cap.record(now, p.id, ps[:n])
	}
	return n
}

func (c *Capture) record(now mono.Time, id int, ps []pkt.Packet) {
	if len(ps) == 0 {
		return
	}
	lost := 0
	c.mu.Lock()
	for i := range ps {
		if !c.ring.put(now, id, c.snap, &ps[i]) {
			lost++
		}
	}
	c.mu.Unlock()
	c.packets.Add(uint64(len(ps)))
	if lost > 0 {
		c.lost.Add(uint64(lost))
	}
}

// write is the writer goroutine.
func (c *Capture) write() {
	defer close(c.done)
	for {
		stopped := c.stop.Load() // read before the ring: what came before Stop is seen
		n := 0
		for rec, ok := c.ring.get(); ok; rec, ok = c.ring.get() {
			c.one(rec)
			c.ring.release()
			n++
		}
		if n > 0 && c.err == nil {
			c.err = c.flush()
		}
		if stopped {
			break
		}
		time.Sleep(writerPeriod)
	}
	c.finish()
}

func (c *Capture) one(r record) {
	if c.err != nil {
		c.lost.Add(1)
		return
	}
	data, length := c.headers.frame(r)
	c.err = c.ng.WritePacket(gopacket.CaptureInfo{
		Timestamp: c.epoch.Add(time.Duration(r.time)), InterfaceIndex: int(r.port),
		CaptureLength: len(data), Length: length,
	}, data)
	if c.err != nil {
		c.lost.Add(1)
		return
	}
	c.written++
}

func (c *Capture) flush() error { return c.ng.Flush() }

// finish writes the statistics, where Wireshark shows how many packets are missing, and closes the file.
func (c *Capture) finish() {
	end := time.Now()
	if c.err == nil {
		s := c.Stats()
		c.err = c.ng.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{
			LastUpdate: end, EndTime: end, PacketsReceived: s.Packets, PacketsDropped: s.Lost,
		})
	}
	if c.err == nil {
		c.err = c.flush()
	}
	c.err = errors.Join(c.err, c.w.Close())
}
