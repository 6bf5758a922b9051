package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/client"
	"github.com/metaroce/metaroce/tools/bed"
)

// meter reads counters and gauges of the lab's NICs.
type meter struct {
	b *bed.Bed
	c *client.Client
}

func newMeter(b *bed.Bed) (*meter, error) {
	c, err := client.Dial(b.Socket())
	if err != nil {
		return nil, err
	}
	return &meter{b, c}, nil
}

func (m *meter) close() { _ = m.c.Close() }

const (
	receiver = "a/mr0"
	headers  = 66 // Ethernet, IPv4 and UDP of a packet, preamble and gap: the receiver counts them, too
	every    = 200 * time.Millisecond
	settle   = 700 * time.Millisecond
)

// counts are sums over planes and NICs at one moment.
type counts struct {
	at                             time.Time
	rxBytes, rxPackets, copies     float64 // of the receiver
	txPackets, retransmits, inVain float64 // of the senders
	drops                          map[string]float64
	engineRx                       float64
}

func number(m any, name string) float64 {
	all, _ := m.(map[string]any)
	v, _ := all[name].(float64)
	return v
}

func (m *meter) counts() (c counts, err error) {
	var s api.Stats
	if err := m.c.Mgmt("stats", nil, &s); err != nil {
		return c, err
	}
	c.at, c.drops = time.Now(), map[string]float64{}
	for _, n := range s.NICs {
		if n.Name == receiver {
			c.engineRx = number(n.Engine, "mroce_engine_rx_packets_total")
			c.copies = number(n.Engine, "mroce_engine_dup_psn_total") + number(n.Engine, "mroce_engine_drop_dup_total")
		} else {
			c.txPackets += number(n.Engine, "mroce_engine_tx_packets_total")
			c.retransmits += number(n.Engine, "mroce_engine_retransmits_total")
			c.inVain += number(n.Engine, "mroce_engine_spurious_losses_total")
		}
		for _, p := range n.Planes {
			if n.Name == receiver {
				c.rxBytes += float64(p.Counters["mroce_rx_bytes_total"])
				c.rxPackets += float64(p.Counters["mroce_rx_packets_total"])
			}
			for why, v := range p.Drops {
				c.drops[side(n.Name)+why] += float64(v)
			}
			c.drops[side(n.Name)+"device_tx_dropped"] += float64(p.Counters["mroce_tx_dropped_total"])
		}
	}
	return c, nil
}

func side(nic string) string {
	if nic == receiver {
		return "receiver: "
	}
	return "sender: "
}

// gauges are means over planes (and senders) at one moment.
type gauges struct {
	rate, factor, given, window, base, srtt, queue float64
	planes                                         float64
}

func (m *meter) gauges() (g gauges, err error) {
	var s api.Status
	if err := m.c.MgmtNIC("status", receiver, nil, &s); err != nil {
		return g, err
	}
	for _, p := range s.NICs[0].Planes {
		if p.Receive == nil {
			return g, errors.New("the receiver does not speak MetaRoCE")
		}
		g.rate += p.Receive.Rate // of all planes together
		g.factor += p.Receive.Factor / float64(len(s.NICs[0].Planes))
		g.given += float64(p.Receive.Grant) / float64(len(s.NICs[0].Planes))
	}
	var all struct {
		NICs []struct {
			NIC   string `json:"nic"`
			Peers []struct {
				Remote string  `json:"remote"`
				QPs    int     `json:"mroce_qps"`
				SRTT   float64 `json:"mroce_srtt_seconds"`
				Planes []struct {
					Window float64 `json:"mroce_window_bytes"`
					Base   float64 `json:"mroce_base_rtt_seconds"`
					Queue  float64 `json:"mroce_queue_delay_seconds"`
				} `json:"planes"`
			} `json:"peers"`
		} `json:"nics"`
	}
	if err := m.c.Mgmt("paths", nil, &all); err != nil {
		return g, err
	}
	for _, n := range all.NICs {
		for _, p := range n.Peers {
			if n.NIC == receiver || p.Remote != bed.HostA || p.QPs == 0 {
				continue
			}
			for _, pl := range p.Planes {
				g.planes++
				g.window += pl.Window
				g.base += pl.Base
				g.queue += pl.Queue
				g.srtt += p.SRTT
			}
		}
	}
	if g.planes > 0 {
		g.window, g.base, g.queue, g.srtt = g.window/g.planes, g.base/g.planes, g.queue/g.planes, g.srtt/g.planes
	}
	return g, nil
}

// one measures a setting and adds the run to its others.
func (r *Result) one(m *meter, s Setting) error {
	a := api.ProfileArgs{Name: s.Rule, Window: s.Window, Target: s.Target}
	if err := m.c.Mgmt("profile", a, nil); err != nil {
		return err
	}
	flows := 1
	if s.Shape == "incast" {
		flows = senders
	}
	var x Run
	var err error
	for range 3 { // a program that the machine did not let begin in time says nothing of the wires
		if x, err = m.measure(flows, r.Seconds); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	r.add(s, x)
	return nil
}

// measure runs flows and looks at them once they have settled.
func (m *meter) measure(flows, seconds int) (x Run, err error) {
	before, err := m.counts()
	if err != nil {
		return x, err
	}
	limit := time.Duration(seconds+40) * time.Second
	done := make(chan error, flows)
	for i := range flows {
		args := []string{"ib_write_bw", "-F", "-p", strconv.Itoa(m.b.NextPort()), "-s", "1048576", "-D", strconv.Itoa(seconds + 2), "--report_gbits"}
		go func() {
			_, err := m.b.PairOn(limit, bed.Host(1+i), args, append(slices.Clone(args), bed.HostA))
			done <- err
		}()
	}
	for end := time.Now().Add(20 * time.Second); ; {
		time.Sleep(20 * time.Millisecond)
		c, err := m.counts()
		if err != nil {
			return x, err
		}
		if c.rxBytes-before.rxBytes > float64(flows)*(8<<20) {
			break
		}
		if time.Now().After(end) {
			return x, errors.Join(errors.New("nothing arrives"), drain(done, flows))
		}
	}
	time.Sleep(settle)
	first, err := m.counts()
	if err != nil {
		return x, err
	}
	var all []gauges
	for end := first.at.Add(time.Duration(seconds) * time.Second); time.Now().Before(end); time.Sleep(every) {
		g, err := m.gauges()
		if err != nil {
			return x, err
		}
		all = append(all, g)
	}
	last, err := m.counts()
	if err != nil {
		return x, err
	}
	if err := drain(done, flows); err != nil {
		return x, err
	}
	return newRun(first, last, all), nil
}

func drain(done chan error, n int) (err error) {
	for range n {
		err = errors.Join(err, <-done)
	}
	return err
}

func newRun(a, b counts, all []gauges) Run {
	secs := b.at.Sub(a.at).Seconds()
	share := func(v, of float64) float64 { return v / max(of, 1) }
	x := Run{
		Retransmitted: share(b.retransmits-a.retransmits, b.txPackets-a.txPackets), Spurious: share(b.inVain-a.inVain, b.txPackets-a.txPackets),
		Drops: map[string]float64{},
	}
	fresh := 1 - share(b.copies-a.copies, b.engineRx-a.engineRx)
	x.Bits = 8 * (b.rxBytes - a.rxBytes) / secs * fresh
	x.TrueBits = 8 * (b.rxBytes - a.rxBytes + headers*(b.rxPackets-a.rxPackets)) / secs
	for why, v := range b.drops {
		if n := v - a.drops[why]; n > 0 {
			x.Drops[why] = n
		}
	}
	n := float64(len(all))
	for _, g := range all {
		x.MeasuredBits += g.rate / n
		x.Factor += g.factor / n
		x.Grant += g.given / n
		x.Window += g.window / n
		x.Base += g.base / n
		x.SRTT += g.srtt / n
		x.Queue += g.queue / n
	}
	return x
}

// probes measures round trips while nothing else is sent: what they take above the smallest is the wire's noise.
func (m *meter) probes(n int) (Spread, error) {
	var all []float64
	for i := range n + 5 {
		var p api.Probe
		if err := m.c.MgmtNIC("probe", "b/mr0", api.ProbeArgs{Peer: bed.HostA, Plane: i % bed.Planes, Timeout: 1}, &p); err != nil {
			return Spread{}, err
		}
		for id := p.ID; !p.Done; {
			time.Sleep(time.Millisecond)
			if err := m.c.MgmtNIC("probe", "b/mr0", api.ProbeArgs{ID: id}, &p); err != nil {
				return Spread{}, err
			}
		}
		if i >= 5 && p.Answered { // the first wait for the handshake
			all = append(all, p.RTT)
		}
	}
	if len(all) < n/2 {
		return Spread{}, fmt.Errorf("only %d of %d probes were answered", len(all), n)
	}
	slices.Sort(all)
	at := func(q float64) float64 { return all[min(int(q*float64(len(all))), len(all)-1)] }
	return Spread{Least: all[0], P50: at(0.5), P90: at(0.9), P99: at(0.99), Most: all[len(all)-1]}, nil
}

// String is the setting in words.
func (s Setting) String() string {
	w := []string{s.Wire, s.Shape}
	if s.Limit != "" {
		w = append(w, "planes of "+s.Limit)
	}
	return strings.Join(append(w, s.rule()), ", ")
}

func (s Setting) rule() string {
	ms := func(v float64) string { return strconv.FormatFloat(v*1e3, 'g', 3, 64) + " ms" }
	switch {
	case s.Rule == "fixed":
		return fmt.Sprintf("fixed, %d KiB", s.Window>>10)
	case s.Target > 0 && s.Target <= lowTarget.Seconds():
		return "target 0"
	case s.Target > 0:
		return "target " + ms(s.Target)
	}
	return "noise " + ms(s.Noise)
}
