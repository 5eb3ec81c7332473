package conformance

import (
	"net/http"
	"strings"
)

func versionCases() []kase {
	return []kase{
		every("VER-CLIENT-002", patchHasNoSay),
		every("VER-SERVER-001", namedVersionIsSpoken),
		every("VER-SERVER-002", unknownVersionIsRefused),
		once("VER-SERVER-003", silenceIsOld),
		every("VER-EXT-001", extensionsAreReadInAnyForm),
	}
}

func patchHasNoSay(x *trial) {
	for _, patch := range []string{".0", ".7", ".99"} {
		r := x.call(opGet, object{"id": x.done()}, headers("A2A-Version", x.form.version+patch))
		x.want(r.fault == nil, "version %s is %d %.300s", x.form.version+patch, r.status, r.raw)
	}
}

func namedVersionIsSpoken(x *trial) {
	id := x.done()
	x.ok(opGet, object{"id": id}) // checked against the form of the version
	e := x.exchange(opGet, object{"id": id}, []http.Header{headers("A2A-Version", "")})
	req, err := e.request(x.deadline())
	x.check(err)
	q := req.URL.Query()
	q.Set("A2A-Version", x.form.version)
	req.URL.RawQuery = q.Encode()
	r := x.send(e, req)
	x.want(r.fault == nil && text(r.task(), "id") == id, "with the version in the query it is %d %.300s", r.status, r.raw)
}

// strangeVersions are not spoken anywhere.
func strangeVersions() []string {
	return []string{"99.0", "1", "2.0", "1.1", "0.2", "0.30", "01.0", "1.0.0.0", "v1.0", "1.0-beta", "x", "1,0", strings.Repeat("9", 300) + ".0"}
}

func unknownVersionIsRefused(x *trial) {
	id := x.done()
	strange := strangeVersions()
	if x.form == rest03() {
		strange = append(strange, "1.0") // below /v1 only 0.3 is spoken
	}
	for _, v := range strange {
		for _, a := range []action{{opSend, x.message("x", nil)}, {opStream, x.message("x", nil)}, {opGet, object{"id": id}}, {opSubscribe, object{"id": id}}} {
			_, r := x.open(a.op, a.params, headers("A2A-Version", v))
			x.refused(r, versionUnsupported())
			if r != nil && r.fault != nil && len(r.fault.details) > 0 {
				x.want(strings.Contains(text(r.fault.details[0], "metadata", "supportedVersions"), "0.3"), "the supported versions are not told: %.300s", r.raw)
			}
		}
	}
}

// silenceIsOld sends no version, or an empty one.
func silenceIsOld(x *trial) {
	for _, silent := range []http.Header{headers("A2A-Version", ""), {"A2a-Version": {""}}, {"A2a-Version": {"  "}}} {
		y := x.in(rpc03())
		k := y.ok(opSend, y.message("x", nil), silent)
		x.want(text(k.result, "kind") == "task", "JSON-RPC answers %.300s", k.raw)
		z := x.in(rest03())
		z.ok(opSend, z.message("x", nil), silent)
		r := x.in(rpc10()).call(opGet, object{"id": "x"}, silent)
		x.want(r.fault != nil && r.fault.code == -32601, "a method of 1.0 without a version is %.300s", r.raw)
	}
}

func extensionsAreReadInAnyForm(x *trial) {
	for _, lines := range [][]string{
		{extPrompt + "," + extRuntime}, {" " + extPrompt + " ,  " + extRuntime + " "}, {extPrompt, extRuntime},
		{"https://example.com/future/v1, " + extRuntime, extPrompt}, {extRuntime + "," + extRuntime + ", , ," + extPrompt},
	} {
		for op, id := range map[string]string{opGet: "no-such-task", opCancel: "no-such-task"} {
			r := x.call(op, object{"id": id}, http.Header{"A2a-Extensions": lines})
			x.refused(r, taskNotFound())
			got := splitURIs(r.header.Values("A2A-Extensions"))
			want := []string{extRuntime}
			if x.missing[needCommand] == "" {
				want = append(want, extPrompt)
			}
			x.want(sameSet(got, want), "%q is echoed as %q", lines, got)
		}
	}
}
