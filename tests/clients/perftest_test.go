//go:build clients

package clients

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

func perftest() *suite {
	s := &suite{name: "perftest", packages: "perftest", half: "a", about: "`-a` is with `-n 50`: with perftest's own number of iterations it moves 84 GB. " +
		"Raw packet QPs write Ethernet frames of their own; what leaves this NIC is RDMA."}
	for _, verb := range []string{"send", "write", "read", "atomic"} {
		s.rows = append(s.rows, bandwidth(verb)...)
		s.rows = append(s.rows, latency(verb)...)
	}
	for _, program := range []string{"raw_ethernet_bw", "raw_ethernet_lat", "raw_ethernet_burst_lat", "raw_ethernet_fs_rate"} {
		s.rows = append(s.rows, row{
			program: program, feature: "raw packets", net: oneHost, smoke: true,
			none: "Unable to create QP|Rate limiter", run: func(l *lab) error {
				_, err := l.one(20*time.Second, words(program, "--client -n 100 -E 02:00:00:00:00:01 -B 02:00:00:00:00:02 -J 10.0.0.1 -j 10.0.0.2 -K 1000 -k 1001")...)
				return err
			},
		})
	}
	return s
}

// pt is a row of a perftest program.
func pt(program, feature string, net network, args string) row {
	return row{program: program, feature: feature, net: net, run: func(l *lab) error { return l.perftest(program, args) }}
}

// only keeps the rows of features that a verb has.
func only(verb string, rows map[string][]row) []row {
	return append(rows["all"], rows[verb]...)
}

// group is 239.1.1.1 as a GID, in perftest's way: the family must be that of the NIC's address, IPv4.
const group = "0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1"

func bandwidth(verb string) []row {
	p := "ib_" + verb + "_bw"
	size := "-s 65536 "
	if verb == "atomic" {
		size = ""
	}
	first := pt(p, "RC", lossy, size+"-n 1000")
	first.smoke = true
	rows := []row{
		first,
		pt(p, "both ways `-b`", lossy, size+"-b -n 500"),
		pt(p, "64 QPs `-q 64`", lossy, "-q 64 -n 100"),
		pt(p, "for a time `-D 2`", lossy, size+"-D 2"),
		pt(p, "lists of requests `-l 16`", lossy, "-l 16 -t 64 -n 1024"),
		pt(p, "counters `--report-counters`", lossy, size+"-n 500 --report-counters=counters/port_xmit_data,counters/port_rcv_data"),
		pt(p, "by rdma_cm `-R`", lossy, size+"-R -n 500"),
		pt(p, "XRC", lossy, size+"-c XRC -n 500"),
	}
	all := pt(p, "all sizes `-a`", lossy, "-a -n 50")
	inline := pt(p, "inline `-I 64`", lossy, "-s 64 -I 64 -n 1000")
	uc := pt(p, "UC", clean(waits), "-c UC -s 4096 -n 500") // all that is sent at once must fit the queue of a TAP
	events := pt(p, "events `-e`", lossy, size+"-e -n 500")
	return append(rows, only(verb, map[string][]row{
		"send": {
			all, inline, uc, events,
			pt(p, "UD", clean(waits), "-c UD -s 1024 -n 1000"),
			pt(p, "UD, multicast `-g`", clean(waits), "-c UD -s 1024 -n 500 -g -M "+group),
			pt(p, "by rdma_cm, 16 QPs `-R -q 16`", lossy, "-R -q 16 -n 100"),
			pt(p, "by rdma_cm, UD", clean(waits), "-R -c UD -s 1024 -n 500"),
			pt(p, "shared receive queue `--use-srq -q 16`", lossy, "--use-srq -q 16 -n 200"),
			pt(p, "UD, shared receive queue", clean(waits), "-c UD --use-srq -s 1024 -n 500"),
		},
		"write": {
			all, inline, uc,
			pt(p, "on-demand paging `--odp`", lossy, size+"--odp -n 500"),
			pt(p, "a region for each QP, path MTU 1024", lossy, "-q 4 --mr_per_qp -m 1024 -n 200"),
		},
		"read":   {all, events, pt(p, "one outstanding `-o 1`", lossy, "-s 4096 -o 1 -n 500")},
		"atomic": {events, pt(p, "compare and swap", lossy, "-A CMP_AND_SWAP -n 1000")},
	})...)
}

func latency(verb string) []row {
	p := "ib_" + verb + "_lat"
	first := pt(p, "RC", lossy, "-n 1000")
	first.smoke = true
	rows := []row{
		first,
		pt(p, "for a time `-D 2`", lossy, "-D 2"),
		pt(p, "by rdma_cm `-R`", lossy, "-R -n 500"),
		pt(p, "XRC", lossy, "-c XRC -n 500"),
	}
	all := pt(p, "all sizes `-a`", lossy, "-a -n 50")
	inline := pt(p, "inline `-I 64`", lossy, "-s 64 -I 64 -n 1000")
	events := pt(p, "events `-e`", lossy, "-e -n 500")
	uc := pt(p, "UC", clean(waits), "-c UC -n 500")
	return append(rows, only(verb, map[string][]row{
		"send": {
			all, inline, events, uc,
			pt(p, "UD", clean(waits), "-c UD -s 1024 -n 1000"),
			pt(p, "UD, events `-e`", clean(waits), "-c UD -e -s 1024 -n 500"),
			pt(p, "UD, multicast `-g`", clean(waits), "-c UD -s 1024 -n 500 -g -M "+group),
			pt(p, "shared receive queue `--use-srq`", lossy, "--use-srq -n 500"),
		},
		"write":  {all, inline, uc},
		"read":   {all, events},
		"atomic": {events, pt(p, "compare and swap", lossy, "-A CMP_AND_SWAP -n 1000")},
	})...)
}

// figures is a line of perftest's table: bytes, iterations, numbers.
var figures = regexp.MustCompile(`(?m)^ *\d+ +\d+( +[\d.]+)+`)

func (l *lab) perftest(program, args string) error {
	port := l.port()
	cmd := words(program, "-F -p "+port+" "+args)
	client := append(cmd, "10.0.0.1")
	p := pair{server: cmd, client: client, listen: port, limit: 60 * time.Second}
	if strings.Contains(" "+args+" ", " -R ") {
		p.listen = "" // no TCP
	}
	out, err := l.pair(p)
	if err == nil && !figures.MatchString(out) {
		err = fmt.Errorf("%s printed no figures:\n%s", program, out)
	}
	return err
}
