package rest_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
)

func TestUpdateNetwork(t *testing.T) {
	w := newWorld(t, "")
	box := w.create(`{"templateID":"base","network":{"allowPublicTraffic":false,"denyOut":["8.8.8.8"],"maskRequestHost":"x","httpsPorts":[8443,443,443]}}`)
	path := "/sandboxes/" + box["sandboxID"].(string)
	put := func(body string) reply { return w.call("PUT", path+"/network", body) }
	want[object](t, put(`{"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"]}`), 204)
	spec := w.node.Alive()[0].Spec
	if n := spec.Network; len(n.AllowOut) != 1 || n.DenyOut[0] != cay.AllTraffic || n.AllowPublic || n.MaskHost != "x" || !n.AllowInternet {
		t.Errorf("the node has %+v", n)
	}
	want[object](t, put(`{"dnsServers":["1.1.1.1"],"egressProxy":{"address":"x.example:1","tls":{"enabled":true,"serverName":"y.example"}}}`), 204)
	shown := want[object](t, w.call("GET", path, ""), 200)["network"].(object)
	if fmt.Sprint(shown["dnsServers"]) != "[1.1.1.1]" || fmt.Sprint(shown["egressProxy"]) != "map[address:x.example:1 tls:map[enabled:true serverName:y.example]]" {
		t.Errorf("shown as %v", shown)
	}
	want[object](t, put(`{"allow_internet_access":false}`), 204)
	detail := want[object](t, w.call("GET", path, ""), 200)
	if n := detail["network"].(object); n["allowOut"] != nil || n["denyOut"] != nil || detail["allowInternetAccess"] != false || n["maskRequestHost"] != "x" || fmt.Sprint(n["httpsPorts"]) != "[443 8443]" {
		t.Errorf("what is left out is not cleared: %v", detail)
	}
	tried := want[[]object](t, w.call("GET", "/cay/v1"+path+"/egress", ""), 200)
	if len(tried) != 1 || tried[0]["rule"] != "denyOut 0.0.0.0/0" || tried[0]["allowed"] != false {
		t.Errorf("tried %v", tried)
	}
	wantError(t, w.callAs(w.other, "GET", "/cay/v1"+path+"/egress", ""), 404, "doesn't exist")
	wantError(t, put(`{"allowOut":["a b"]}`), 400, "network.allowOut")
	wantError(t, put(`{"denyOut":["example.com"]}`), 400, "network.denyOut")
	wantError(t, put(`{"rules":{"*":[{}]}}`), 400, "network.rules")
	wantError(t, put(`{"egressProxy":{"address":"x"}}`), 400, "network.egressProxy.address")
	wantError(t, put(`{"dnsServers":["::1"]}`), 400, "network.dnsServers")
	wantError(t, put(`{"egressProxy":{"address":"x.example:1","tls":{"enabled":false,"serverName":"y.example"}}}`), 400, "network.egressProxy.tls")
	wantError(t, put(`{"egressProxy":{"address":"x.example:1","tls":{"enabled":true,"serverName":"1.1"}}}`), 400, "network.egressProxy.tls.serverName")
	wantError(t, put(`{"egressProxy":{"address":"x.example:1","tls":{"enabled":true,"caCert":"x"}}}`), 400, "network.egressProxy.tls.caCert")
	wantError(t, put(`[]`), 400, "object")
	wantError(t, w.callAs(w.other, "PUT", path+"/network", `{}`), 404, "doesn't exist")
	want[object](t, w.call("POST", path+"/pause", ""), 204)
	wantError(t, put(`{}`), 409, "paused")
	wantError(t, w.call("GET", "/cay/v1"+path+"/egress", ""), 409, "paused")
}

// More is allowed without a word of the rest, whose secrets no answer tells.
func TestAllowEgress(t *testing.T) {
	w := newWorld(t, "")
	box := w.create(`{"templateID":"base","network":{"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"],
		"egressProxy":{"address":"x.example:1","username":"u","password":"secret"},"rules":{"a.example":[{"transform":{"headers":{"X-A":"b"}}}]}}}`)
	path := "/cay/v1/sandboxes/" + box["sandboxID"].(string) + "/egress"
	before := w.node.Alive()[0].Spec.Network
	for range 2 {
		want[any](t, w.call("POST", path, `{"allow":["Example.COM","9.9.9.0/24","1.1.1.1"]}`), 204)
	}
	after := w.node.Alive()[0].Spec.Network
	if fmt.Sprint(after.AllowOut) != "[1.1.1.1 example.com 9.9.9.0/24]" {
		t.Errorf("allowed: %v", after.AllowOut)
	}
	after.AllowOut = before.AllowOut
	if !reflect.DeepEqual(before, after) {
		t.Errorf("the rest is %+v, was %+v", after, before)
	}
	wantError(t, w.call("POST", path, `{"allow":[]}`), 400, "allow")
	wantError(t, w.call("POST", path, `{"allow":["a b"]}`), 400, "network.allowOut")
	wantError(t, w.call("POST", path, `{"allow":["1.1.1.1"`+strings.Repeat(`,"x.example"`, 64)+`]}`), 400, "allow")
	wantError(t, w.callAs(w.other, "POST", path, `{"allow":["x.example"]}`), 404, "doesn't exist")
	want[any](t, w.call("POST", "/sandboxes/"+box["sandboxID"].(string)+"/pause", ""), 204)
	wantError(t, w.call("POST", path, `{"allow":["x.example"]}`), 409, "paused")
}

// A field of a policy that create, PUT, control or GET forget is dropped
// without a word, so each one has a value here.
func TestEveryFieldOfAPolicyArrives(t *testing.T) {
	const outwards = `"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"],"askOut":["b.example"],"dnsServers":["9.9.9.9"],
		"egressProxy":{"address":"x.example:1"},"rules":{"a.example":[{"transform":{"headers":{"X-A":"b"}}}]}`
	w := newWorld(t, "")
	create := func(more string) (path string) {
		box := w.create(`{"templateID":"base","network":{"allowPublicTraffic":true,"maskRequestHost":"x","httpsPorts":[443]` + more + `},
			"iam":{"tokens":{"aws":{"audience":"sts","tokenType":"JWT-SVID"}}}}`)
		return "/sandboxes/" + box["sandboxID"].(string)
	}
	whole := func(when, path string) {
		t.Helper()
		policy := reflect.ValueOf(w.node.Alive()[0].Spec.Network)
		for i := range policy.NumField() {
			name := policy.Type().Field(i).Name
			if name != "Private" && name != "Bandwidth" && policy.Field(i).IsZero() { // they have routes of their own
				t.Errorf("%s: the node lacks %s", when, name)
			}
		}
		shown := want[object](t, w.call("GET", path, ""), 200)["network"].(object)
		fields := reflect.TypeFor[e2b.Network]()
		for i := range fields.NumField() {
			name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			if shown[name] == nil {
				t.Errorf("%s: GET lacks %s", when, name)
			}
		}
	}
	path := create("," + outwards)
	whole("created", path)
	want[object](t, w.call("DELETE", path, ""), 204)
	path = create("")
	want[object](t, w.call("PUT", path+"/network", `{`+outwards+`}`), 204)
	whole("replaced", path)
}
