//go:build clients

package clients

import (
	"fmt"
	"strings"
	"time"
)

func pingpongs() *suite {
	s := &suite{
		name: "Verbs: ibverbs-utils, infiniband-diags", packages: "ibverbs-utils infiniband-diags", half: "a",
		about: "The pingpongs compare what they receive with what was sent (`-c`).",
	}
	none := clean(waits)
	add := func(program, feature string, net network, smoke bool, args string) {
		s.rows = append(s.rows, row{program: program, feature: feature, net: net, smoke: smoke, run: func(l *lab) error { return l.pingpong(program, args) }})
	}
	for _, p := range []struct {
		program string
		net     network
		big     string // a size of many packets
	}{{"ibv_rc_pingpong", lossy, "100000"}, {"ibv_srq_pingpong", lossy, "100000"}, {"ibv_uc_pingpong", none, "100000"}, {"ibv_ud_pingpong", none, "2048"}} {
		add(p.program, "polling", p.net, true, "-c -n 1000")
		add(p.program, "events `-e`", p.net, false, "-c -e -n 500")
		add(p.program, "inline: 64 B", p.net, false, "-c -s 64 -n 1000")
		add(p.program, p.big+" B", p.net, false, "-c -n 200 -s "+p.big)
	}
	add("ibv_srq_pingpong", "64 QPs with events", lossy, false, "-c -e -q 64 -n 50")
	add("ibv_srq_pingpong", "on-demand paging `-o`", lossy, false, "-c -o -n 500")
	for _, o := range []struct{ feature, args string }{
		{"work requests by `ibv_wr_*`: `-N`", "-c -N -n 1000"},
		{"`-N -e`, inline", "-c -N -e -s 64 -n 500"},
		{"on-demand paging `-o`", "-c -o -n 500"},
		{"implicit on-demand paging `-O`", "-c -o -O -n 500"},
		{"on-demand paging, prefetched `-P`", "-c -o -P -n 500"},
		{"device memory `-j`", "-c -j -s 512 -n 500"},
		{"time stamps of completions `-t`", "-c -t -n 500"},
	} {
		add("ibv_rc_pingpong", o.feature, lossy, false, o.args)
	}
	for _, o := range []struct{ feature, args string }{
		{"polling", "-n 200"}, {"events `-e`", "-e -n 200"}, {"on-demand paging `-o`", "-o -n 200"},
	} {
		add("ibv_xsrq_pingpong", o.feature, lossy, o.args == "-n 200", o.args)
	}
	s.rows = append(s.rows,
		shows("ibv_devices", "lists the NIC", "", "mr0"),
		shows("ibv_devinfo", "`-v`", "-v", "PORT_ACTIVE", "link_layer:\t\tEthernet", "GID[  0]:\t\t::ffff:10.0.0.1"),
		row{program: "ibv_asyncwatch", feature: "port events: all planes down, up", net: oneHost, smoke: true, run: asyncwatch},
		shows("ibstat", "shows the NIC", "", "CA 'mr0'", "State: Active", "Link layer: Ethernet"),
		shows("ibstatus", "shows the NIC", "", "'mr0' port 1 status", "ACTIVE", "Ethernet"),
	)
	return s
}

// shows is a row of a program on one host that has to print all the words.
func shows(program, feature, args string, must ...string) row {
	return row{program: program, feature: feature, net: oneHost, smoke: true, run: func(l *lab) error {
		out, err := l.one(20*time.Second, words(program, args)...)
		if err != nil {
			return err
		}
		for _, m := range must {
			if !strings.Contains(out, m) {
				return fmt.Errorf("%s does not say %q:\n%s", program, m, out)
			}
		}
		return nil
	}}
}

func (l *lab) pingpong(program, args string) error {
	port := l.port()
	cmd := words(program, "-g 0 -p "+port+" "+args)
	_, err := l.pair(pair{server: cmd, client: append(cmd, "a"), listen: port})
	return err
}

// asyncwatch: each change of the port is told once.
func asyncwatch(l *lab) error {
	w := l.start(20*time.Second, "a", "stdbuf", "-oL", "ibv_asyncwatch")
	defer w.end()
	time.Sleep(time.Second)
	defer forget(oneHost) // with whatever is switched off
	for _, state := range []string{"down", "up"} {
		for plane := range 2 {
			if err := l.Nicemu("plane", "--nic", "a/mr0", state, fmt.Sprint(plane)); err != nil {
				return err
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	w.end()
	said := w.said.String()
	for _, event := range []string{"PORT_ERR", "PORT_ACTIVE"} {
		if n := strings.Count(said, event); n != 1 {
			return fmt.Errorf("%d × %q:\n%s", n, event, said)
		}
	}
	return nil
}
