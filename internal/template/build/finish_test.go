package build

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// A template that inherits a start command runs it as the template that brought
// it did.
func TestAStartCommandKeepsItsContext(t *testing.T) {
	parent := cay.Setup{Env: map[string]string{"A": "1"}, User: "worker", Dir: "/srv", StartCmd: "serve", ReadyCmd: "look"}
	brought := parent.StartContext()
	grand := parent
	grand.User, grand.StartIn = "user", &brought
	bare := cay.Setup{User: "user", Dir: "/home/user"}
	parent.Docker = true
	grand.Docker = true
	own := state{Env: map[string]string{"A": "2"}, User: "user", Dir: "/opt"}
	same := state{Env: parent.Env, User: parent.User, Dir: parent.Dir}
	ours := cay.CommandContext{Env: own.Env, User: own.User, Dir: own.Dir}
	for name, tc := range map[string]struct {
		from         cay.Setup
		state        state
		start, ready string
		want         [2]string // start and ready command
		in           cay.CommandContext
		kept         bool // apart from the template's own
	}{
		"inherited":                {parent, own, "", "", [2]string{"serve", "look"}, brought, true},
		"inherited twice":          {grand, own, "", "", [2]string{"serve", "look"}, brought, true},
		"inherited, nothing set":   {parent, same, "", "", [2]string{"serve", "look"}, brought, false},
		"inherited, another ready": {parent, own, "", "curl", [2]string{"serve", "curl"}, brought, true},
		"its own":                  {parent, own, "run", "curl", [2]string{"run", "curl"}, ours, false},
		"its own over two":         {grand, own, "run", "curl", [2]string{"run", "curl"}, ours, false},
		"its own, no ready":        {parent, own, "run", "", [2]string{"run", ""}, ours, false},
		"none":                     {bare, own, "", "", [2]string{}, ours, false},
		"ready alone":              {bare, own, "", "curl", [2]string{"", "curl"}, ours, false},
	} {
		r := &run{state: tc.state, spec: cay.BuildSpec{Setup: tc.from, StartCmd: tc.start, ReadyCmd: tc.ready}}
		got := r.setup()
		if [2]string{got.StartCmd, got.ReadyCmd} != tc.want || !reflect.DeepEqual(got.StartContext(), tc.in) || (got.StartIn != nil) != tc.kept {
			t.Errorf("%s: %+v, start in %+v", name, got, got.StartContext())
		}
		if got.Docker != tc.from.Docker || got.Boot().Docker != tc.from.Docker {
			t.Errorf("%s: Docker is %v, want that of the template before", name, got.Docker)
		}
		if got.User != tc.state.User || got.Dir != tc.state.Dir {
			t.Errorf("%s: other commands run as %s in %s", name, got.User, got.Dir)
		}
		if !reflect.DeepEqual(got.Boot().StartContext(), tc.in) {
			t.Errorf("%s: a start from files runs it in %+v", name, got.Boot().StartContext())
		}
		c := templateCommand(got, "x", nil)
		if c.user != tc.in.User || c.dir != tc.in.Dir || !reflect.DeepEqual(c.env, tc.in.Env) {
			t.Errorf("%s: the build runs it as %+v", name, c)
		}
	}
}

// Keys of builds hold the setup: one without a context of its own is written as
// before there was one.
func TestSetupsOfOldBuildsKeepTheirKeys(t *testing.T) {
	text, err := json.Marshal(cay.Setup{User: "user", StartCmd: "serve"})
	if err != nil || string(text) != `{"user":"user","startCmd":"serve"}` {
		t.Errorf("%s, %v", text, err)
	}
}

func TestNotReadySaysTheLastWords(t *testing.T) {
	err := notReady(time.Minute, &exit{Status: "exit status 7"}, []string{"connection refused"})
	var ours *cay.Error
	if !errors.As(err, &ours) || ours.Kind != cay.Unavailable || !strings.Contains(ours.Msg, "exit status 7\nconnection refused") {
		t.Errorf("%#v", err)
	}
	if err := notReady(time.Minute, nil, nil); !strings.HasSuffix(err.Error(), "within 1m0s") {
		t.Errorf("%v", err)
	}
}
