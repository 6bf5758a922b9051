package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
)

// MgmtFunc is a management command. It runs as OnLoop has it: it may touch NICs and ports, and must not block.
type MgmtFunc func(args json.RawMessage) (any, error)

type builtinFunc func(d *Daemon, nics []*device.NIC, args json.RawMessage) (any, error)

var builtinNames = [...]string{"addresses", "allow", "deny", "entropies", "events", "paths", "plane", "ports", "probe", "profile", "stats", "status"}

// builtin finds a built-in command. nics are those that the request is about; the command runs as OnLoop has it.
func builtin(name string) builtinFunc {
	switch name {
	case "status":
		return (*Daemon).status
	case "stats":
		return (*Daemon).statistics
	case "paths":
		return (*Daemon).paths
	case "plane":
		return (*Daemon).plane
	case "addresses":
		return (*Daemon).addresses
	case "ports":
		return (*Daemon).ports
	case "events":
		return (*Daemon).eventsCmd
	case "deny":
		return (*Daemon).deny
	case "allow":
		return (*Daemon).allow
	case "entropies":
		return (*Daemon).entropies
	case "probe":
		return (*Daemon).probe
	case "profile":
		return (*Daemon).profile
	}
	return nil
}

// doMgmt answers a management request: JSON after the header, both ways.
func doMgmt(c *client, b []byte, _ []int) answer {
	var h hostq.Hdr
	n := hostq.Size[hostq.Hdr]()
	hostq.Decode(b[:n], &h)
	text, err := json.Marshal(c.d.manage(b[n:]))
	if err != nil {
		text, _ = json.Marshal(api.Response{Error: &api.Error{Message: err.Error(), Code: api.CodeFailed}})
	}
	for len(text) > hostq.MsgBytes-n { // all but the last part
		part := append(make([]byte, n), text[:hostq.MsgBytes-n]...)
		text = text[hostq.MsgBytes-n:]
		sealReply(part, &h, 0)
		part[2] |= hostq.HdrMore
		if !c.reply(part) {
			return answer{err: errPart}
		}
	}
	return answer{msg: append(make([]byte, n), text...)}
}

// manage runs one request and never fails: what goes wrong is in the answer.
func (d *Daemon) manage(text []byte) (r api.Response) {
	fail := func(code, format string, a ...any) api.Response {
		return api.Response{Error: &api.Error{Code: code, Message: fmt.Sprintf(format, a...)}}
	}
	var req api.Request
	if err := strict(text, &req); err != nil {
		return fail(api.CodeBadRequest, "request: %v", err)
	}
	nics, err := d.selectNICs(req.NIC)
	if err != nil {
		return fail(api.CodeUnknownNIC, "%v", err)
	}
	var out json.RawMessage
	var v any
	run := func(mono.Time) { // what is returned may be the loop's own: turn it into text there
		if v, err = d.cfg.Mgmt[req.Cmd](req.Args); err == nil {
			out, err = json.Marshal(v)
		}
	}
	own := builtin(req.Cmd)
	if own != nil { // ours return copies: 4,000 QPs as text would keep the loop for milliseconds
		run = func(mono.Time) { v, err = own(d, nics, req.Args) }
	} else if d.cfg.Mgmt[req.Cmd] == nil {
		return fail(api.CodeUnknownCommand, "no such command: %s", req.Cmd)
	}
	ran := d.OnLoop(run)
	if own != nil && ran && err == nil {
		out, err = json.Marshal(v)
	}
	var coded *api.Error
	switch {
	case !ran:
		return fail(api.CodeStopping, "the daemon is stopping")
	case errors.As(err, &coded):
		return api.Response{Error: coded}
	case err != nil:
		return fail(api.CodeFailed, "%s: %v", req.Cmd, err)
	}
	return api.Response{OK: out}
}

// strict decodes JSON and refuses names that it does not know.
func strict(text []byte, v any) error {
	if len(text) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// selectNICs finds the NIC of a name, or all of them.
func (d *Daemon) selectNICs(name string) ([]*device.NIC, error) {
	if name == "" {
		return d.nics, nil
	}
	n, err := d.findNIC(name)
	if err != nil {
		return nil, fmt.Errorf("no NIC is named %s, or several are", name)
	}
	return []*device.NIC{n}, nil
}

// Commands are the names of all management commands.
func (d *Daemon) Commands() []string {
	out := append([]string(nil), builtinNames[:]...)
	for name := range d.cfg.Mgmt {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

func updown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func (d *Daemon) status(nics []*device.NIC, _ json.RawMessage) (any, error) {
	d.mu.Lock()
	clients := len(d.clients)
	d.mu.Unlock()
	s := api.Status{Daemon: api.DaemonStatus{PID: os.Getpid(), Version: d.cfg.Version, Socket: d.cfg.Socket,
		UptimeSeconds: time.Since(d.started).Seconds(), Clients: clients, Commands: d.Commands()}}
	for _, n := range nics {
		ns := nicStatus(n)
		ns.CM = d.cmStatus(n)
		s.NICs = append(s.NICs, ns)
	}
	return s, nil
}

func nicStatus(n *device.NIC) api.NICStatus {
	var port hostq.PortAttr
	state := "down"
	if n.PortAttr(1, &port) == nil && port.PlanesUp > 0 {
		state = "active"
	}
	s := api.NICStatus{Name: n.Name(), Dev: n.Dev(), GUID: fmt.Sprintf("%016x", n.GUID()), State: state,
		ActiveMTU: 128 << port.ActiveMTU, HostPort: n.HostPort() != nil, Contexts: []api.Context{}, QPs: []api.QP{}}
	for _, a := range n.Addrs() {
		s.Addrs = append(s.Addrs, a.String())
	}
	var ports []metaroce.PortInfo
	if p := n.Paths(); p != nil {
		ports = p.Ports()
	}
	for i, p := range n.Planes() {
		ps := api.PlaneStatus{Plane: i, Wire: p.Caps.Name, Kind: p.Caps.Kind, Admin: updown(p.Admin),
			Link: updown(p.Up), RateBps: p.Caps.RateBps, PacketMax: p.Caps.PacketMax, Noise: p.Caps.TimerNoise.Seconds()}
		if i < len(ports) {
			r := &ports[i]
			ps.Receive = &api.Receiver{Rate: r.RateBps, Factor: r.Factor, Senders: r.Senders, Grant: r.Grant}
		}
		s.Planes = append(s.Planes, ps)
	}
	l := n.C.Live
	s.Objects = api.Objects{Contexts: n.Contexts(), PDs: l.PDs, MRs: l.MRs, MWs: l.MWs, CQs: l.CQs, QPs: l.QPs, SRQs: l.SRQs, XRCDs: l.XRCDs, Channels: l.Channels, AHs: l.AHs}
	for _, c := range n.ContextInfos() {
		s.Contexts = append(s.Contexts, api.Context{ID: c.ID, Program: c.Program, PID: c.PID, DMA: c.DMA, Stalls: c.DMAStalls, Fault: c.DeadCause,
			Objects: api.Objects{Contexts: 1, PDs: c.PDs, MRs: c.MRs, MWs: c.MWs, CQs: c.CQs, QPs: c.QPs, SRQs: c.SRQs, XRCDs: c.XRCDs, Channels: c.Channels, AHs: c.AHs}})
	}
	for _, q := range n.QPInfos() {
		qp := api.QP{QPN: q.QPN, Type: strings.ToLower(q.Type), Transport: q.Transport, State: q.State.String(), PID: q.PID, Remote: q.Remote,
			RemoteQPN: q.RemoteQPN, Outstanding: q.Outstanding}
		if q.Plane >= 0 {
			qp.Plane = &q.Plane
		}
		s.QPs = append(s.QPs, qp)
	}
	return s
}

func (d *Daemon) statistics(nics []*device.NIC, _ json.RawMessage) (any, error) {
	s := api.Stats{Daemon: map[string]uint64{
		"mroce_control_connections_total":         d.stats.connections.Load(),
		"mroce_control_connections_refused_total": d.stats.refused.Load(),
		"mroce_control_requests_total":            d.stats.requests.Load(),
		"mroce_control_malformed_total":           d.stats.malformed.Load(),
	}}
	for _, l := range d.loops {
		s.Daemon["mroce_loop_steps_total"] += l.steps
		s.Daemon["mroce_loop_sleeps_total"] += l.sleeps
	}
	d.cmCounters(s.Daemon)
	for _, n := range nics {
		ns := api.NICStats{Name: n.Name(), Counters: nicCounters(n)}
		if e, ok := n.Engine().(interface{ CountersJSON() any }); ok {
			ns.Engine = e.CountersJSON()
		}
		for i, p := range n.Planes() {
			ns.Planes = append(ns.Planes, planeStats(i, &p))
		}
		s.NICs = append(s.NICs, ns)
	}
	return s, nil
}

func nicCounters(n *device.NIC) map[string]uint64 {
	c := &n.C
	m := map[string]uint64{
		"mroce_contexts_opened_total":      c.ContextsOpened,
		"mroce_send_requests_total":        c.SendWRs,
		"mroce_receive_requests_total":     c.RecvWRs,
		"mroce_failed_requests_total":      c.FailedWRs,
		"mroce_bad_descriptors_total":      c.BadDescriptors,
		"mroce_stray_doorbells_total":      c.StrayBells,
		"mroce_completions_total":          c.CQEs,
		"mroce_completions_dropped_total":  c.CQEsDropped,
		"mroce_cq_overruns_total":          c.CQOverruns,
		"mroce_completion_events_total":    c.CompEvents,
		"mroce_async_events_total":         c.AsyncEvents,
		"mroce_async_events_lost_total":    c.EventsLost,
		"mroce_qp_errors_total":            c.QPErrors,
		"mroce_remote_access_errors_total": c.RemoteAccessErrors,
		"mroce_bind_errors_total":          c.BindErrors,
		"mroce_dma_operations_total":       c.DMAOps,
		"mroce_dma_calls_total":            c.DMACalls,
		"mroce_dma_faults_total":           c.DMAFaults,
		"mroce_dma_stalls_total":           c.DMAStalls,
		"mroce_memory_faults_total":        c.MemFaults,
		"mroce_loopback_packets_total":     c.LoopbackPackets,
		"mroce_loopback_bytes_total":       c.LoopbackBytes,
		"mroce_tx_multicast_total":         c.TxMulticast,
		"mroce_rx_multicast_total":         c.RxMulticast,
		"mroce_link_downs_total":           c.LinkDowns,
		"mroce_pds":                        uint64(c.Live.PDs),
		"mroce_mrs":                        uint64(c.Live.MRs),
		"mroce_cqs":                        uint64(c.Live.CQs),
		"mroce_qps":                        uint64(c.Live.QPs),
		"mroce_mws":                        uint64(c.Live.MWs),
		"mroce_srqs":                       uint64(c.Live.SRQs),
		"mroce_xrcds":                      uint64(c.Live.XRCDs),
		"mroce_completion_channels":        uint64(c.Live.Channels),
		"mroce_contexts":                   uint64(n.Contexts()),
	}
	if h := n.HostPort(); h != nil {
		m["mroce_host_port_rx_packets_total"], m["mroce_host_port_rx_bytes_total"] = h.RxPackets, h.RxBytes
		m["mroce_host_port_tx_packets_total"], m["mroce_host_port_tx_bytes_total"] = h.TxPackets, h.TxBytes
		m["mroce_host_port_dropped_total"] = h.Dropped
	}
	return m
}

func planeStats(i int, p *device.PlaneInfo) api.PlaneStats {
	return api.PlaneStats{Plane: i, Drops: maps.Clone(p.Wire.Drops), Counters: map[string]uint64{
		"mroce_rx_packets_total":            p.Device.RxPackets,
		"mroce_rx_bytes_total":              p.Device.RxBytes,
		"mroce_tx_packets_total":            p.Device.TxPackets,
		"mroce_tx_bytes_total":              p.Device.TxBytes,
		"mroce_tx_refused_total":            p.Device.TxRefused,
		"mroce_tx_dropped_total":            p.Device.TxDropped,
		"mroce_rx_dropped_admin_down_total": p.Device.RxDroppedAdminDown,
		"mroce_ethernet_rx_total":           p.Device.EthRx,
		"mroce_ethernet_tx_total":           p.Device.EthTx,
		"mroce_ethernet_dropped_total":      p.Device.EthDropped,
		"mroce_wire_rx_packets_total":       p.Wire.RxPackets,
		"mroce_wire_rx_bytes_total":         p.Wire.RxBytes,
		"mroce_wire_tx_packets_total":       p.Wire.TxPackets,
		"mroce_wire_tx_bytes_total":         p.Wire.TxBytes,
	}}
}

func (d *Daemon) paths(nics []*device.NIC, _ json.RawMessage) (any, error) {
	p := api.Paths{}
	for _, n := range nics {
		np := api.NICPaths{Name: n.Name()}
		if e, ok := n.Engine().(interface{ PathsJSON() any }); ok {
			np.Peers = e.PathsJSON()
		}
		p.NICs = append(p.NICs, np)
	}
	return p, nil
}

func (d *Daemon) plane(nics []*device.NIC, args json.RawMessage) (any, error) {
	var a api.PlaneArgs
	if err := strict(args, &a); err != nil {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("plane: %v", err)}
	}
	if len(args) == 0 || len(nics) == 0 {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: "plane: which one?"}
	}
	for _, n := range nics {
		if !n.SetPlane(d.clock.now(), a.Plane, a.Up) {
			return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("%s has no plane %d", n.Name(), a.Plane)}
		}
	}
	return d.status(nics, nil)
}

// eventLog keeps the last events.
type eventLog struct {
	mu   sync.Mutex
	ring [1024]api.Event
	next uint64 // sequence number of the next event; the first is 1
}

func (l *eventLog) sink(nic string) func(transport.Event) {
	return func(e transport.Event) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.next++
		l.ring[l.next%uint64(len(l.ring))] = api.Event{Seq: l.next, Time: float64(time.Now().UnixNano()) / 1e9, NIC: nic,
			Kind: e.Kind.String(), Peer: e.Peer, Plane: e.Plane, Path: e.Path}
	}
}

func (d *Daemon) eventsCmd(nics []*device.NIC, args json.RawMessage) (any, error) {
	var a api.EventsArgs
	if err := strict(args, &a); err != nil {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("events: %v", err)}
	}
	wanted := map[string]bool{}
	for _, n := range nics {
		wanted[n.Name()] = true
	}
	l := &d.events
	l.mu.Lock()
	defer l.mu.Unlock()
	out := api.Events{Events: []api.Event{}, Next: l.next}
	first := a.Since + 1
	if kept := uint64(len(l.ring)); l.next > kept && first <= l.next-kept {
		out.Lost = l.next - kept - a.Since
		first = l.next - kept + 1
	}
	for i := first; i <= l.next; i++ {
		if e := l.ring[i%uint64(len(l.ring))]; wanted[e.NIC] {
			out.Events = append(out.Events, e)
		}
	}
	return out, nil
}
