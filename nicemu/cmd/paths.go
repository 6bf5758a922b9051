package cmd

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/nicemu/fail"
)

// enginePaths is what the daemon answers to "paths". The fields are the transport's own, and its times are in
// nanoseconds; what we print from them has units in the names.
type enginePaths struct {
	NICs []struct {
		NIC   string       `json:"nic"`
		Peers []enginePeer `json:"peers"`
	} `json:"nics"`
}

type enginePeer struct {
	Local, Remote, State string
	PeerID, PeerInstance uint64
	QPs                  int
	SRTT                 float64
	Planes               []enginePlane
}

type enginePlane struct {
	Plane                       int
	State                       string
	Window, Grant, InFlight     int64
	Sent, Acked, Lost, Spurious uint64
	Failures                    uint64
	ActivePaths                 int
	Paths                       []enginePath
}

type enginePath struct {
	Path, SrcPort, Outstanding int
	Sent, Lost                 uint64
	SRTT                       float64
}

// pathsInfo is what `paths --json` prints: one object a daemon, as `status` and `stats` do.
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
	Plane    int        `json:"plane"`
	State    string     `json:"state"`
	Window   int64      `json:"mroce_window_bytes"`
	Grant    int64      `json:"mroce_grant_bytes"`
	InFlight int64      `json:"mroce_in_flight_bytes"`
	Sent     uint64     `json:"mroce_sent_packets_total"`
	Acked    uint64     `json:"mroce_acked_packets_total"`
	Lost     uint64     `json:"mroce_lost_packets_total"`
	Spurious uint64     `json:"mroce_spurious_losses_total"`
	Failures uint64     `json:"mroce_plane_failures_total"`
	Paths    []pathInfo `json:"paths"`
}

type pathInfo struct {
	Path        int     `json:"path"`
	SrcPort     int     `json:"source_port"`
	Outstanding int     `json:"mroce_outstanding_packets"`
	Sent        uint64  `json:"mroce_sent_packets_total"`
	Lost        uint64  `json:"mroce_lost_packets_total"`
	SRTT        float64 `json:"mroce_srtt_seconds"`
}

func (p enginePaths) public() pathsInfo {
	all := []nicPaths{}
	for _, n := range p.NICs {
		out := nicPaths{NIC: n.NIC, Peers: []peerInfo{}}
		for _, e := range n.Peers {
			peer := peerInfo{
				Local: e.Local, Remote: e.Remote, State: e.State, ID: fmt.Sprintf("%016x", e.PeerID),
				Instance: fmt.Sprintf("%016x", e.PeerInstance), QPs: e.QPs, SRTT: e.SRTT / 1e9, Planes: []planeInfo{},
			}
			for _, pl := range e.Planes {
				plane := planeInfo{
					Plane: pl.Plane, State: pl.State, Window: pl.Window, Grant: pl.Grant, InFlight: pl.InFlight, Sent: pl.Sent,
					Acked: pl.Acked, Lost: pl.Lost, Spurious: pl.Spurious, Failures: pl.Failures, Paths: []pathInfo{},
				}
				for _, x := range pl.Paths {
					plane.Paths = append(plane.Paths, pathInfo{
						Path: x.Path, SrcPort: x.SrcPort, Outstanding: x.Outstanding, Sent: x.Sent, Lost: x.Lost, SRTT: x.SRTT / 1e9,
					})
				}
				peer.Planes = append(peer.Planes, plane)
			}
			out.Peers = append(out.Peers, peer)
		}
		all = append(all, out)
	}
	return pathsInfo{all}
}

func (e *env) paths(c *cli.Context) error {
	answers, _, err := ask[json.RawMessage](c, "paths", nil)
	if err != nil {
		return err
	}
	var all []pathsInfo
	for _, text := range answers {
		var p enginePaths
		if err := json.Unmarshal(text, &p); err != nil {
			return fail.Failf("cannot read what the daemon says of its paths (another version?): %w", err)
		}
		all = append(all, p.public())
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
					n.NIC, p.Remote, p.State, strconv.Itoa(pl.Plane), pl.State, strconv.Itoa(len(pl.Paths)), micros(p.SRTT),
					kib(pl.Window), kib(pl.InFlight), u64(pl.Sent), u64(pl.Lost), u64(pl.Spurious),
				})
				for _, x := range pl.Paths {
					paths = append(paths, []string{
						n.NIC, p.Remote, strconv.Itoa(pl.Plane), strconv.Itoa(x.Path), strconv.Itoa(x.SrcPort), micros(x.SRTT),
						strconv.Itoa(x.Outstanding), u64(x.Sent), u64(x.Lost),
					})
				}
			}
		}
	}
	if len(planes) == 0 {
		e.note("no peers: no program has a connection, or had one lately")
		return nil
	}
	head := []string{"NIC", "PEER", "STATE", "PLANE", "PLANE STATE", "PATHS", "RTT µs", "WINDOW KiB", "IN FLIGHT KiB", "SENT packets", "LOST", "SPURIOUS"}
	if err := columns(e.out, head, planes); err != nil || !each {
		return err
	}
	fmt.Fprintln(e.out)
	return columns(e.out, []string{"NIC", "PEER", "PLANE", "PATH", "SOURCE PORT", "RTT µs", "OUTSTANDING", "SENT packets", "LOST"}, paths)
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
