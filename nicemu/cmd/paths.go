package cmd

import (
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"
)

// pathsInfo is what the daemon answers to "paths", and what `paths --json` prints: one object a daemon, as `status` and
// `stats` do.
type pathsInfo struct {
	NICs []nicPaths `json:"nics"`
}

type nicPaths struct {
	NIC   string     `json:"nic"`
	Peers []peerInfo `json:"peers"`
}

type peerInfo struct {
	Local    string      `json:"local"`
	Remote   string      `json:"remote"`
	State    string      `json:"state"`
	ID       string      `json:"peer_id"`       // 16 hex digits: more than a JSON number holds
	Instance string      `json:"peer_instance"` // likewise
	QPs      int         `json:"mroce_qps"`
	SRTT     float64     `json:"mroce_srtt_seconds"`
	Planes   []planeInfo `json:"planes"`
}

type planeInfo struct {
	Plane     int        `json:"plane"`
	State     string     `json:"state"`
	Profile   string     `json:"profile"`
	Entropies string     `json:"entropies"`
	Window    int64      `json:"mroce_window_bytes"`
	Grant     int64      `json:"mroce_grant_bytes"`
	InFlight  int64      `json:"mroce_in_flight_bytes"`
	PacketMax int64      `json:"mroce_packet_max_bytes"`
	SRTT      float64    `json:"mroce_srtt_seconds"`
	Base      float64    `json:"mroce_base_rtt_seconds"`
	Queue     float64    `json:"mroce_queue_delay_seconds"`
	Target    float64    `json:"mroce_delay_target_seconds"`
	Loss      float64    `json:"mroce_loss_ratio"`
	Sent      uint64     `json:"mroce_sent_packets_total"`
	Acked     uint64     `json:"mroce_acked_packets_total"`
	Lost      uint64     `json:"mroce_lost_packets_total"`
	Spurious  uint64     `json:"mroce_spurious_losses_total"`
	Failures  uint64     `json:"mroce_plane_failures_total"`
	Paths     []pathInfo `json:"paths"`
}

type pathInfo struct {
	Path        int     `json:"path"`
	SrcPort     int     `json:"source_port"`
	State       string  `json:"state"`
	Denied      bool    `json:"denied"`
	Outstanding int     `json:"mroce_outstanding_packets"`
	Sent        uint64  `json:"mroce_sent_packets_total"`
	Lost        uint64  `json:"mroce_lost_packets_total"`
	Marked      uint64  `json:"mroce_ce_marks_total"`
	Rerolls     uint64  `json:"mroce_entropy_changes_total"`
	Loss        float64 `json:"mroce_loss_ratio"`
	SRTT        float64 `json:"mroce_srtt_seconds"`
}

func (e *env) paths(c *cli.Context) error {
	if c.String("entropies") != "" {
		return e.entropies(c)
	}
	all, _, err := ask[pathsInfo](c, "paths", nil)
	if err != nil {
		return err
	}
	for i := range all {
		for k := range all[i].NICs {
			if n := &all[i].NICs[k]; n.Peers == nil {
				n.Peers = []peerInfo{}
			}
		}
	}
	if c.Bool("json") {
		return e.printEach(all)
	}
	var nics []nicPaths
	for _, p := range all {
		nics = append(nics, p.NICs...)
	}
	return e.printPaths(nics, c.Bool("all"))
}

// printPaths prints a line for each plane to each peer, and with each a line for every path on it.
func (e *env) printPaths(all []nicPaths, each bool) error {
	var planes, paths [][]string
	for _, n := range all {
		for _, p := range n.Peers {
			for _, pl := range p.Planes {
				planes = append(planes, []string{
					n.NIC, p.Remote, p.State, strconv.Itoa(pl.Plane), pl.State, strconv.Itoa(len(pl.Paths)), micros(p.SRTT), micros(pl.Base),
					micros(pl.Queue), micros(pl.Target), kib(pl.Window), kib(pl.Grant), kib(pl.InFlight), u64(pl.Sent), u64(pl.Lost), u64(pl.Spurious),
				})
				for _, x := range pl.Paths {
					paths = append(paths, []string{
						n.NIC, p.Remote, strconv.Itoa(pl.Plane), strconv.Itoa(x.Path), strconv.Itoa(x.SrcPort), x.use(), micros(x.SRTT),
						strconv.Itoa(x.Outstanding), u64(x.Sent), u64(x.Lost), u64(x.Marked),
					})
				}
			}
		}
	}
	if len(planes) == 0 {
		e.note("no peers: no program has a connection, or had one lately")
		return nil
	}
	head := []string{"NIC", "PEER", "STATE", "PLANE", "PLANE STATE", "PATHS", "RTT µs", "BASE µs", "QUEUE µs", "TARGET µs", "WINDOW KiB", "GRANT KiB", "IN FLIGHT KiB", "SENT packets", "LOST", "SPURIOUS"}
	if err := columns(e.out, head, planes); err != nil || !each {
		return err
	}
	fmt.Fprintln(e.out)
	return columns(e.out, []string{"NIC", "PEER", "PLANE", "PATH", "SOURCE PORT", "STATE", "RTT µs", "OUTSTANDING", "SENT packets", "LOST", "MARKED"}, paths)
}

// use is the path's state for people: what the operator said goes before what the transport found.
func (x *pathInfo) use() string {
	if x.Denied {
		return "denied"
	}
	return x.State
}

// micros prints a time; what has not been measured is a dash.
func micros(seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return strconv.FormatFloat(seconds*1e6, 'f', 1, 64)
}

func kib(n int64) string { return strconv.FormatInt((n+1023)/1024, 10) }

func u64(n uint64) string { return strconv.FormatUint(n, 10) }
