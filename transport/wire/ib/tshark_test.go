package ib

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// tsharkFields are the fields of golden packets as Wireshark's dissector of InfiniBand calls them.
var tsharkFields = []struct{ header, field, name string }{
	{"RoCEBTH", "Opcode", "infiniband.bth.opcode"},
	{"RoCEBTH", "SE", "infiniband.bth.se"},
	{"RoCEBTH", "MigReq", "infiniband.bth.m"},
	{"RoCEBTH", "Pad", "infiniband.bth.padcnt"},
	{"RoCEBTH", "TVer", "infiniband.bth.tver"},
	{"RoCEBTH", "PKey", "infiniband.bth.p_key"},
	{"RoCEBTH", "DestQP", "infiniband.bth.destqp"},
	{"RoCEBTH", "AckReq", "infiniband.bth.a"},
	{"RoCEBTH", "PSN", "infiniband.bth.psn"},
	{"RETH", "VA", "infiniband.reth.va"},
	{"RETH", "RKey", "infiniband.reth.r_key"},
	{"RETH", "Len", "infiniband.reth.dmalen"},
	{"AtomicETH", "VA", "infiniband.reth.va"},
	{"AtomicETH", "RKey", "infiniband.reth.r_key"},
	{"AtomicETH", "Swap", "infiniband.atomiceth.swapdt"},
	{"AtomicETH", "Compare", "infiniband.atomiceth.cmpdt"},
	{"AETH", "Syndrome", "infiniband.aeth.syndrome"},
	{"AETH", "MSN", "infiniband.aeth.msn"},
	{"AtomicAckETH", "Result", "infiniband.atomicacketh.origremdt"},
	{"ImmDt", "Imm", "infiniband.immdt"},
	{"IETH", "RKey", "infiniband.ieth"},
	{"DETH", "QKey", "infiniband.deth.q_key"},
	{"DETH", "SrcQP", "infiniband.deth.srcqp"},
}

// TestTshark has a program that nobody here wrote read the golden packets: each field is what the file says, and
// nothing is malformed. Wireshark shows the ICRC and does not check it.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("MR_TEST_REQUIRE") == "all" {
			t.Fatal(err)
		}
		t.Skipf("needs tshark: %v", err)
	}
	var vs []golden // of XRC it knows nothing
	for _, name := range []string{"rocev2-rc.json", "rocev2-uc.json", "rocev2-ud.json"} {
		vs = append(vs, makeGolden()[name].Vectors...)
	}
	// A capture of bare IP packets (link type 101).
	pcap := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	for _, x := range []uint32{4<<16 | 2, 0, 0, 1 << 16, 101} {
		pcap = binary.LittleEndian.AppendUint32(pcap, x)
	}
	for i := range vs {
		b, err := hex.DecodeString(vs[i].IP + vs[i].UDP + vs[i].Hex)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []uint32{uint32(i), 0, uint32(len(b)), uint32(len(b))} {
			pcap = binary.LittleEndian.AppendUint32(pcap, x)
		}
		pcap = append(pcap, b...)
	}
	file := filepath.Join(t.TempDir(), "golden.pcap")
	if err := os.WriteFile(file, pcap, 0o600); err != nil {
		t.Fatal(err)
	}
	// PDML: with "-T fields", tshark 4.0 shows nothing of fields that two headers have under one name. A message of
	// no bytes is tried as Ethernet over InfiniBand, unless that is off.
	out, err := exec.Command(tshark, "-n", "-r", file, "-o", "ip.check_checksum:TRUE", "--disable-heuristic", "mellanox_eoib", "-T", "pdml").Output()
	if err != nil {
		t.Fatal(err)
	}
	packets := strings.Split(string(out), "<packet>")[1:]
	if len(packets) != len(vs) {
		t.Fatalf("%d packets, tshark reads %d", len(vs), len(packets))
	}
	for i := range vs {
		checkDissected(t, &vs[i], packets[i])
	}
}

var pdmlField = regexp.MustCompile(`<field name="([^"]+)"[^>]* show="([^"]*)"`)

func checkDissected(t *testing.T, v *golden, pdml string) {
	t.Helper()
	got := map[string]string{}
	for _, m := range pdmlField.FindAllStringSubmatch(pdml, -1) {
		if _, there := got[m[1]]; !there {
			got[m[1]] = m[2]
		}
	}
	if strings.Contains(pdml, "_ws.malformed") || got["ip.checksum.status"] == "0" || got["ip.checksum.status"] == "Bad" {
		t.Errorf("%s: malformed, or a wrong checksum of IP", v.Name)
	}
	for i := range v.Parts {
		h := &v.Parts[i]
		for _, f := range tsharkFields {
			if w, there := h.Fields[f.field]; there && f.header == h.Header && number(got[f.name]) != number(w) {
				t.Errorf("%s: %s is %q, want %s", v.Name, f.name, got[f.name], w)
			}
		}
		if h.Header == "CNP" { // it does not know CNPs and takes the rest for data
			return
		}
	}
	if crc := "0x" + v.Hex[len(v.Hex)-8:]; got["infiniband.invariant.crc"] != crc {
		t.Errorf("%s: ICRC %q, want %s", v.Name, got["infiniband.invariant.crc"], crc)
	}
}

// number reads what tshark prints, hexadecimal, decimal, or bytes with colons, as a decimal number.
func number(s string) string {
	switch s {
	case "True":
		return "1"
	case "False":
		return "0"
	}
	base := 0
	if strings.Contains(s, ":") {
		s, base = strings.ReplaceAll(s, ":", ""), 16
	}
	x, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		return s
	}
	return strconv.FormatUint(x, 10)
}
