package hostq

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const header = "../../verbs/include/mr_abi.h"

// goStructs is every struct of the header and its mirror.
var goStructs = map[string]reflect.Type{
	"mr_hdr": reflect.TypeFor[Hdr](), "mr_hello": reflect.TypeFor[Hello](), "mr_hello_reply": reflect.TypeFor[HelloReply](),
	"mr_list": reflect.TypeFor[List](), "mr_nic": reflect.TypeFor[NIC](), "mr_list_reply": reflect.TypeFor[ListReply](),
	"mr_open": reflect.TypeFor[Open](), "mr_device_attr": reflect.TypeFor[DeviceAttr](), "mr_open_reply": reflect.TypeFor[OpenReply](),
	"mr_query_port": reflect.TypeFor[QueryPort](), "mr_port_attr": reflect.TypeFor[PortAttr](),
	"mr_query_gid": reflect.TypeFor[QueryGID](), "mr_gid_entry": reflect.TypeFor[GIDEntry](),
	"mr_handle": reflect.TypeFor[Handle](), "mr_destroy_reply": reflect.TypeFor[DestroyReply](),
	"mr_reg_mr": reflect.TypeFor[RegMR](), "mr_reg_mr_reply": reflect.TypeFor[RegMRReply](), "mr_alloc_mw": reflect.TypeFor[AllocMW](),
	"mr_create_cq": reflect.TypeFor[CreateCQ](), "mr_create_srq": reflect.TypeFor[CreateSRQ](), "mr_create_srq_reply": reflect.TypeFor[CreateSRQReply](), "mr_open_xrcd": reflect.TypeFor[OpenXRCD](), "mr_open_qp": reflect.TypeFor[OpenQP](),
	"mr_srq_attr":  reflect.TypeFor[SRQAttr](),
	"mr_create_qp": reflect.TypeFor[CreateQP](), "mr_create_qp_reply": reflect.TypeFor[CreateQPReply](),
	"mr_ah_attr": reflect.TypeFor[AHAttr](), "mr_modify_qp": reflect.TypeFor[ModifyQP](), "mr_create_ah": reflect.TypeFor[CreateAH](),
	"mr_mcast":  reflect.TypeFor[Mcast](),
	"mr_assist": reflect.TypeFor[Assist](), "mr_assist_desc": reflect.TypeFor[AssistDesc](), "mr_assist_page": reflect.TypeFor[AssistPage](),
	"mr_import_mr_reply": reflect.TypeFor[ImportMRReply](), "mr_dm_msg": reflect.TypeFor[DM](), "mr_share": reflect.TypeFor[Share](),
	"mr_import": reflect.TypeFor[Import](), "mr_import_reply": reflect.TypeFor[ImportReply](), "mr_modify_cq": reflect.TypeFor[ModifyCQ](),
	"mr_comp_event": reflect.TypeFor[CompEvent](), "mr_async_event": reflect.TypeFor[AsyncEvent](),
	"mr_ctx_page": reflect.TypeFor[CtxPage](), "mr_ring": reflect.TypeFor[RingHeader](), "mr_sge": reflect.TypeFor[SGE](),
	"mr_sqe": reflect.TypeFor[SQE](), "mr_rqe": reflect.TypeFor[RQE](), "mr_cqe": reflect.TypeFor[CQE](),
}

var goConsts = map[string]uint64{
	"MR_ABI_MAJOR": ABIMajor, "MR_ABI_MINOR": ABIMinor, "MR_ABI_MAGIC": Magic,
	"MR_CTX_BYTES_MAX": CtxBytesMax, "MR_CTX_BYTES_MIN": CtxBytesMin, "MR_RING_ALIGN": RingAlign, "MR_MAX_SGE": MaxSGE,
	"MR_MAX_INLINE": MaxInline, "MR_CQE_INLINE": CQEInline, "MR_MAX_DOORBELLS": MaxDoorbells, "MR_NAME_BYTES": NameBytes,
	"MR_MSG_BYTES": MsgBytes, "MR_MAX_FDS": MaxFDs, "MR_CTX_PAGE_BYTES": CtxPageBytes, "MR_RING_HDR": RingHdr,
	"MR_HDR_REPLY": HdrReply, "MR_HDR_MORE": HdrMore,
	"MR_OP_HELLO": uint64(OpHello), "MR_OP_LIST": uint64(OpList), "MR_OP_OPEN": uint64(OpOpen), "MR_OP_QUERY_PORT": uint64(OpQueryPort),
	"MR_OP_QUERY_GID": uint64(OpQueryGID), "MR_OP_MGMT": uint64(OpMgmt), "MR_OP_ALLOC_PD": uint64(OpAllocPD),
	"MR_OP_FREE_PD": uint64(OpFreePD), "MR_OP_REG_MR": uint64(OpRegMR), "MR_OP_DEREG_MR": uint64(OpDeregMR),
	"MR_OP_REREG_MR": uint64(OpReregMR), "MR_OP_ALLOC_MW": uint64(OpAllocMW), "MR_OP_FREE_MW": uint64(OpFreeMW),
	"MR_OP_CREATE_CHANNEL": uint64(OpCreateChannel), "MR_OP_DESTROY_CHANNEL": uint64(OpDestroyChannel),
	"MR_OP_CREATE_CQ": uint64(OpCreateCQ), "MR_OP_DESTROY_CQ": uint64(OpDestroyCQ), "MR_OP_RESIZE_CQ": uint64(OpResizeCQ),
	"MR_OP_CREATE_SRQ": uint64(OpCreateSRQ), "MR_OP_MODIFY_SRQ": uint64(OpModifySRQ), "MR_OP_QUERY_SRQ": uint64(OpQuerySRQ),
	"MR_OP_DESTROY_SRQ": uint64(OpDestroySRQ), "MR_OP_CREATE_QP": uint64(OpCreateQP), "MR_OP_MODIFY_QP": uint64(OpModifyQP),
	"MR_OP_QUERY_QP": uint64(OpQueryQP), "MR_OP_DESTROY_QP": uint64(OpDestroyQP), "MR_OP_CREATE_AH": uint64(OpCreateAH),
	"MR_OP_DESTROY_AH": uint64(OpDestroyAH), "MR_OP_ATTACH_MCAST": uint64(OpAttachMcast), "MR_OP_DETACH_MCAST": uint64(OpDetachMcast),
	"MR_OP_OPEN_XRCD": uint64(OpOpenXRCD), "MR_OP_CLOSE_XRCD": uint64(OpCloseXRCD), "MR_OP_OPEN_QP": uint64(OpOpenQP),
	"MR_OP_ASSIST": uint64(OpAssist), "MR_ASSIST_DESCS": AssistDescs, "MR_ASSIST_DATA": AssistData, "MR_ASSIST_BYTES": AssistBytes,
	"MR_ASSIST_POSTED": AssistPosted, "MR_ASSIST_TAKEN": AssistTaken, "MR_ASSIST_DONE": AssistDone, "MR_ASSIST_FAULT": AssistFault,
	"MR_ASSIST_SKIPPED": AssistSkipped, "MR_ASSIST_CANCELLED": AssistCancelled,
	"MR_OP_ALLOC_NULL_MR": uint64(OpAllocNullMR), "MR_OP_SHARE": uint64(OpShare), "MR_OP_IMPORT": uint64(OpImport),
	"MR_OP_IMPORT_PD": uint64(OpImportPD), "MR_OP_IMPORT_MR": uint64(OpImportMR), "MR_OP_ALLOC_DM": uint64(OpAllocDM),
	"MR_OP_FREE_DM": uint64(OpFreeDM), "MR_OP_IMPORT_DM": uint64(OpImportDM), "MR_OP_MODIFY_CQ": uint64(OpModifyCQ),
	"MR_DMA_NONE": DMANone, "MR_DMA_PROCESS_VM": DMAProcessVM, "MR_DMA_PROC_MEM": DMAProcMem, "MR_DMA_ASSIST": DMAAssist,
	"MR_CQ_IGNORE_OVERRUN": CQIgnoreOverrun, "MR_ARM_NEXT": ArmNext, "MR_ARM_SOLICITED": ArmSolicited,
	"MR_RING_OVERRUN": RingOverrun, "MR_RING_ERROR": RingError,
	"MR_WR_WRITE": WRWrite, "MR_WR_WRITE_IMM": WRWriteImm, "MR_WR_SEND": WRSend, "MR_WR_SEND_IMM": WRSendImm, "MR_WR_READ": WRRead,
	"MR_WR_CMP_SWAP": WRCmpSwap, "MR_WR_FETCH_ADD": WRFetchAdd, "MR_WR_LOCAL_INV": WRLocalInv, "MR_WR_BIND_MW": WRBindMW,
	"MR_WR_SEND_INV": WRSendInv, "MR_WR_TSO": WRTSO, "MR_WR_ATOMIC_WRITE": WRAtomicWrite,
	"MR_SEND_FENCE": SendFence, "MR_SEND_SIGNALED": SendSignaled, "MR_SEND_SOLICITED": SendSolicited,
	"MR_SEND_INLINE": SendInline, "MR_SEND_IP_CSUM": SendIPCsum, "MR_CQE_SEND": CQESend, "MR_CQE_SRQ": CQESRQ, "MR_CQE_XRC": CQEXRC,
}

// TestHeader compiles the header and compares sizes, offsets and constants, both ways: nothing may be missing.
func TestHeader(t *testing.T) {
	src, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(src), " ")
	structs := cStructs(text)
	consts := cConsts(text)
	got := compile(t, structs, consts)

	for name, fields := range structs {
		g, ok := goStructs[name]
		if !ok {
			t.Errorf("struct %s has no mirror", name)
			continue
		}
		if int(got["s "+name]) != int(g.Size()) {
			t.Errorf("sizeof(struct %s): C %d, Go %d", name, got["s "+name], g.Size())
		}
		if len(fields) != g.NumField() {
			t.Errorf("struct %s: %d fields in C (%v), %d in Go", name, len(fields), fields, g.NumField())
			continue
		}
		for i, f := range fields {
			gf := g.Field(i)
			if plain(f) != plain(gf.Name) {
				t.Errorf("struct %s field %d: C %s, Go %s", name, i, f, gf.Name)
			}
			if o := got["o "+name+"."+f]; o != uint64(gf.Offset) {
				t.Errorf("offsetof(struct %s, %s): C %d, Go %d", name, f, o, gf.Offset)
			}
			if s := got["z "+name+"."+f]; s != uint64(gf.Type.Size()) {
				t.Errorf("size of %s.%s: C %d, Go %d", name, f, s, gf.Type.Size())
			}
		}
	}
	for name := range goStructs {
		if structs[name] == nil {
			t.Errorf("struct %s is not in the header", name)
		}
	}
	for _, name := range consts {
		if v, ok := goConsts[name]; !ok {
			t.Errorf("constant %s has no mirror", name)
		} else if got["c "+name] != v {
			t.Errorf("%s: C %#x, Go %#x", name, got["c "+name], v)
		}
	}
	if len(consts) != len(goConsts) {
		t.Errorf("%d constants in C, %d in Go", len(consts), len(goConsts))
	}
	if len(structs) < 30 || len(consts) < 70 {
		t.Errorf("parsed only %d structs, %d constants", len(structs), len(consts))
	}
}

func plain(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }

// cStructs finds the structs of the header and the names of their fields, in order.
func cStructs(text string) map[string][]string {
	out := map[string][]string{}
	decl := regexp.MustCompile(`(\w+)\s*(?:\[[^\]]*\])?\s*[,;]`)
	for _, m := range regexp.MustCompile(`(?m)^struct (\w+) \{`).FindAllStringSubmatchIndex(text, -1) {
		name, body, depth := text[m[2]:m[3]], "", 1
		for _, c := range text[m[1]:] {
			if c == '{' {
				depth++
			}
			if c == '}' {
				depth--
			}
			if depth == 0 {
				break
			}
			if depth == 1 && c != '}' {
				body += string(c)
			}
		}
		for _, d := range decl.FindAllStringSubmatch(body, -1) {
			out[name] = append(out[name], d[1])
		}
	}
	return out
}

func cConsts(text string) (out []string) {
	for _, re := range []string{`(?m)^#define (MR_\w+) `, `(?m)^\s+(MR_\w+) =`, `(?:\{|,) (MR_\w+) =`} {
		for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(text, -1) {
			out = append(out, m[1])
		}
	}
	return out
}

func compile(t *testing.T, structs map[string][]string, consts []string) map[string]uint64 {
	t.Helper()
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"mr_abi.h\"\nint main(void){\n")
	for name, fields := range structs {
		fmt.Fprintf(&b, "printf(\"s %s=%%zu\\n\", sizeof(struct %s));\n", name, name)
		for _, f := range fields {
			fmt.Fprintf(&b, "printf(\"o %s.%s=%%zu\\n\", offsetof(struct %s, %s));\n", name, f, name, f)
			fmt.Fprintf(&b, "printf(\"z %s.%s=%%zu\\n\", sizeof(((struct %s *)0)->%s));\n", name, f, name, f)
		}
	}
	for _, c := range consts {
		fmt.Fprintf(&b, "printf(\"c %s=%%llu\\n\", (unsigned long long)%s);\n", c, c)
	}
	b.WriteString("return 0;}\n")
	dir := t.TempDir()
	c, bin := filepath.Join(dir, "abi.c"), filepath.Join(dir, "abi")
	if err := os.WriteFile(c, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	inc, err := filepath.Abs(filepath.Dir(header))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-std=c11", "-Wall", "-Werror", "-I", inc, "-o", bin, c).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		k, v, _ := strings.Cut(line, "=")
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		got[k] = n
	}
	return got
}
