//go:build clients

package clients

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func connected() *suite {
	s := &suite{name: "rdma_cm: rdmacm-utils", packages: "rdmacm-utils", half: "a"}
	// add: a server on a, a client on b that is given a's address.
	add := func(program, feature string, net network, smoke bool, server, client string) {
		s.rows = append(s.rows, row{program: program, feature: feature, net: net, smoke: smoke, run: func(l *lab) error {
			_, err := l.pair(pair{server: words(program, server), client: words(program, client)})
			return err
		}})
	}
	const to = "-s 10.0.0.1 "
	add("rping", "pings, validated", lossy, true, "-s -a 10.0.0.1 -C 50 -V", "-c -a 10.0.0.1 -C 50 -V")
	add("rping", "its own QPs `-q`", lossy, false, "-s -a 10.0.0.1 -C 20 -V -q", "-c -a 10.0.0.1 -C 20 -V -q")
	add("rping", "64 KB", lossy, false, "-s -a 10.0.0.1 -C 20 -V -S 65000", "-c -a 10.0.0.1 -C 20 -V -S 65000")
	s.rows = append(s.rows, row{program: "rping", feature: "persistent server `-P`, 5 clients", net: lossy, run: persistent})
	add("ucmatose", "100 messages", lossy, true, "-C 100", to+"-C 100")
	add("ucmatose", "10 connections", lossy, false, "-c 10", to+"-c 10")
	add("ucmatose", "migrates ids `-m`", lossy, false, "-m", to+"-m")
	add("udaddy", "datagrams", clean(waits), true, "-C 100", to+"-C 100")
	add("udaddy", "10 pairs", clean(waits), false, "-c 10", to+"-c 10")
	add("mckey", "multicast", clean(waits), true, "-m 239.1.1.1 -b 10.0.0.1 -C 10", "-m 239.1.1.1 -b 10.0.0.2 -s -C 10")
	add("rstream", "rsockets, verified", lossy, true, "-T v -S 65536 -C 100", to+"-T v -S 65536 -C 100")
	add("rstream", "rsockets, nonblocking", lossy, false, "-T n -C 100 -S 4096", to+"-T n -C 100 -S 4096")
	add("riostream", "rsockets, remote writes", lossy, true, "-T v -S 65536 -C 100", to+"-T v -S 65536 -C 100")
	s.rows = append(s.rows, row{program: "udpong", feature: "rsockets, datagrams", net: clean(waits), smoke: true, run: func(l *lab) error {
		_, err := l.pair(pair{server: words("udpong", "-b 10.0.0.1"), client: words("udpong", to+"-C 100"), endless: true})
		return err
	}})
	s.rows = append(s.rows, row{program: "rcopy", feature: "a file of 3 MB", net: lossy, smoke: true, run: rcopy})
	s.rows = append(s.rows, row{program: "cmtime", feature: "100 connections", net: lossy, smoke: true, run: func(l *lab) error {
		_, err := l.pair(pair{server: words("cmtime", "-c 100"), client: words("cmtime", to+"-c 100"), endless: true})
		return err
	}})
	add("rdma_server", "endpoints: rdma_client", lossy, true, "", "")
	s.rows[len(s.rows)-1].run = func(l *lab) error {
		_, err := l.pair(pair{server: words("rdma_server", "-p 7471"), client: words("rdma_client", "-s 10.0.0.1 -p 7471")})
		return err
	}
	add("rdma_xserver", "endpoints, RC: rdma_xclient", lossy, true, "", "")
	s.rows[len(s.rows)-1].run = func(l *lab) error {
		_, err := l.pair(pair{server: words("rdma_xserver", "-p 7472 -c r"), client: words("rdma_xclient", "-s 10.0.0.1 -p 7472 -c r")})
		return err
	}
	add("rdma_xserver", "endpoints, XRC: rdma_xclient", lossy, false, "", "")
	s.rows[len(s.rows)-1].run = func(l *lab) error {
		_, err := l.pair(pair{server: words("rdma_xserver", "-p 7471 -c x"), client: words("rdma_xclient", "-s 10.0.0.1 -p 7471 -c x")})
		return err
	}
	return s
}

// persistent: a server that stays, clients one after another with no pause (field case F32).
func persistent(l *lab) error {
	s := l.start(40*time.Second, "a", words("rping", "-s -P -a 10.0.0.1 -V")...)
	defer s.end()
	for i := range 5 {
		c, err := l.client(s, pair{client: words("rping", "-c -a 10.0.0.1 -C 5 -V"), limit: 20 * time.Second})
		if err != nil {
			return fmt.Errorf("client %d: %w\nserver: %s%s", i, err, s.said.String(), c.said.String())
		}
	}
	return nil
}

func rcopy(l *lab) error {
	dir, err := os.MkdirTemp("", "mr-rcopy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	content := bytes.Repeat([]byte("what rcopy copies, over and over\n"), 3_000_000/33)
	if err := os.WriteFile(from, content, 0o644); err != nil {
		return err
	}
	_, err = l.pair(pair{server: []string{"rcopy"}, client: []string{"rcopy", from, "10.0.0.1:" + to}, endless: true})
	if err != nil {
		return err
	}
	got, err := os.ReadFile(to)
	if err == nil && !bytes.Equal(got, content) {
		err = fmt.Errorf("%d bytes arrived, not the %d that were sent", len(got), len(content))
	}
	return err
}
