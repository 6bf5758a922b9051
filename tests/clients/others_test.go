//go:build clients

package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// fabric: libfabric's providers over verbs.
func fabric() *suite {
	s := &suite{name: "libfabric", packages: "libfabric-bin libfabric1", half: "b", about: "`fi_pingpong -c` checks what it receives, in all its sizes."}
	for _, c := range []struct {
		feature, args, want string
	}{
		{"verbs, datagrams", "-p verbs -t FI_EP_DGRAM", "provider: verbs"},
		{"verbs, connections", "-p verbs -t FI_EP_MSG", "provider: verbs"},
		{"verbs;ofi_rxm, reliable datagrams", "-p verbs;ofi_rxm -t FI_EP_RDM", "provider: verbs;ofi_rxm"},
	} {
		r := shows("fi_info", c.feature, c.args, c.want)
		r.smoke = c.args == "-p verbs -t FI_EP_DGRAM"
		s.rows = append(s.rows, r)
	}
	for _, c := range []struct {
		feature, args string
		net           network
	}{
		{"verbs, datagrams", "-p verbs -e dgram", clean(waits)},
		{"verbs, connections", "-p verbs -e msg", lossy},
		{"verbs;ofi_rxm, reliable datagrams", "-p verbs;ofi_rxm -e rdm", lossy},
		{"verbs;ofi_rxm, tagged", "-p verbs;ofi_rxm -e rdm -m tagged", lossy},
	} {
		s.rows = append(s.rows, row{program: "fi_pingpong", feature: c.feature, net: c.net, smoke: c.args == "-p verbs -e dgram", run: func(l *lab) error {
			port := l.port()
			cmd := words("fi_pingpong", "-c -I 100 "+c.args)
			_, err := l.pair(pair{server: append(cmd[:len(cmd):len(cmd)], "-B", port), client: append(cmd[:len(cmd):len(cmd)], "-P", port, "10.0.0.1"), listen: port})
			return err
		}})
	}
	return s
}

func others() *suite {
	s := &suite{
		name: "qperf, fio", packages: "qperf fio", half: "b",
		about: "Without `-cm1` qperf knows its peer by LID and not by GID, as it always does with UC and UD; no Ethernet port takes that.",
	}
	for _, kind := range []struct {
		name  string
		net   network
		tests string
		none  string
	}{
		{"RC", lossy, "rc_bw rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat", ""},
		{"RC atomics", lossy, "rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add", ""},
		{"UD", clean(waits), "ud_bw ud_bi_bw ud_lat", "failed to create address handle: Invalid argument"},
		{"UC", clean(waits), "uc_bw uc_bi_bw uc_lat uc_rdma_write_bw uc_rdma_write_lat uc_rdma_write_poll_lat", "failed to modify QP to RTR: Invalid argument"},
	} {
		s.rows = append(s.rows, row{program: "qperf", feature: "`-cm1 " + kind.tests + "`", net: kind.net, smoke: kind.name == "RC",
			none: kind.none, run: func(l *lab) error { return l.qperf(kind.tests) }})
	}
	for _, verb := range []string{"send", "write", "read"} {
		s.rows = append(s.rows, row{program: "fio", feature: "engine rdma, verb " + verb, net: lossy, smoke: verb == "write", run: func(l *lab) error { return l.fio(verb) }})
	}
	return s
}

func (l *lab) qperf(tests string) error {
	port := l.port()
	out, err := l.pair(pair{
		server: words("qperf", "-lp "+port), client: words("qperf", "10.0.0.1 -lp "+port+" -cm1 -t 1 -to 10 "+tests),
		listen: port, endless: true, limit: 60 * time.Second,
	})
	for _, test := range strings.Fields(tests) {
		if err == nil && !strings.Contains(out, test+":") {
			err = fmt.Errorf("qperf says nothing of %s:\n%s", test, out)
		}
	}
	return err
}

// fio runs one job as server (rw=read) and one as client (rw=write); the verb is the client's.
func (l *lab) fio(verb string) error {
	dir, err := os.MkdirTemp("", "mr-fio")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	port := l.port()
	side := func(name, lines string) []string {
		file := filepath.Join(dir, name)
		text := "[global]\nioengine=rdma\nport=" + port + "\nbs=64k\nsize=16m\niodepth=8\nverb=" + verb + "\n[job]\n" + lines
		if e := os.WriteFile(file, []byte(text), 0o644); e != nil {
			err = e
		}
		return []string{"fio", "--aux-path=" + dir, file}
	}
	p := pair{server: side("server", "rw=read\n"), client: side("client", "hostname=10.0.0.1\nrw=write\n")}
	if err != nil {
		return err
	}
	_, err = l.pair(p)
	return err
}
