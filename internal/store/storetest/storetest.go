// Package storetest is the conformance suite of store.Store: every
// implementation runs it.
package storetest

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// Run runs the suite. open returns a new, empty store each time and closes it
// when its test ends.
func Run(t *testing.T, open func(t testing.TB) store.Store) {
	tests := []struct {
		name string
		test func(t *testing.T, s store.Store)
	}{
		{"Teams", testTeams},
		{"RemoveTeam", testRemoveTeam},
		{"Nodes", testNodes},
		{"NodeLeases", testNodeLeases},
		{"Cluster", testCluster},
		{"NetworkMembers", testNetworkMembers},
		{"People", testPeople},
		{"Keys", testKeys},
		{"Limits", testLimits},
		{"UsedTokens", testUsedTokens},
		{"Sessions", testSessions},
		{"Identities", testIdentities},
		{"Secrets", testSecrets},
		{"Volumes", testVolumes},
		{"VolumesOfSandboxes", testVolumesOfSandboxes},
		{"VolumeSnapshots", testVolumeSnapshots},
		{"SSHKeys", testSSHKeys},
		{"Templates", testTemplates},
		{"TemplateVisibility", testVisibility},
		{"Builds", testBuilds},
		{"Tags", testTags},
		{"BuildLogs", testBuildLogs},
		{"BuildQueue", testQueue},
		{"BuildQueueTurns", testQueueTurns},
		{"Sandbox", testSandbox},
		{"SandboxTeams", testSandboxTeams},
		{"List", testList},
		{"Live", testLive},
		{"Prune", testPrune},
		{"Snapshots", testSnapshots},
		{"RemoveTemplate", testRemoveTemplate},
		{"Events", testEvents},
		{"Audit", testAudit},
		{"PruneMany", testPruneMany},
		{"EventsWithState", testEventsWithState},
		{"EventOrder", testEventOrder},
		{"EventDetails", testEventDetails},
		{"Webhooks", testWebhooks},
		{"Triggers", testTriggers},
		{"Runs", testRuns},
		{"Approvals", testApprovals},
		{"ApprovalsTogether", testApprovalsTogether},
		{"Models", testModels},
		{"Attempts", testAttempts},
		{"Once", testOnce},
		{"Tx", testTx},
		{"Running", testRunning},
		{"Usage", testUsage},
		{"UsageAccounts", testUsageAccounts},
		{"UsageKept", testUsageKept},
		{"TeamMinutes", testTeamMinutes},
		{"Prices", testPrices},
		{"Budgets", testBudgets},
		{"Trees", testTrees},
		{"TreesOfTeams", testTreesOfTeams},
		{"LongPolicies", testLongPolicies},
		{"Parallel", testParallel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, open(t)) })
	}
	t.Run("Model", func(t *testing.T) { testModel(t, open) })
}

// at is a time with the precision that a store keeps.
func at(ms int) time.Time {
	return time.UnixMilli(1_700_000_000_000 + int64(ms)).UTC()
}

func addTeam(t testing.TB, s store.Store, name string) cay.Team {
	t.Helper()
	team := cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: at(0)}
	noError(t, s.AddTeam(t.Context(), team))
	return team
}

func sandbox(team cay.TeamID, started int) cay.Sandbox {
	return cay.Sandbox{
		ID: cay.NewSandboxID(), Team: team, Template: "tmpl", Build: cay.NewBuildID(),
		Snapshot: cay.NewSnapshotID(), Alias: "base", Key: "key", Node: "local", Instance: cay.NewInstanceID(),
		State:     cay.Running,
		Limits:    cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
		Metadata:  map[string]string{"user": "ann", "odd key=&": "v%20 ü"},
		Env:       map[string]string{"A": "1"},
		Network:   cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"1.1.1.1"}},
		Secure:    true,
		StartedAt: at(started), EndAt: at(started + 300_000), Timeout: 300 * time.Second,
		OnTimeout: cay.KillOnTimeout, Saved: cay.FilesSnapshot, Notice: "its memory is gone", Unresponsive: true, ReplicatedAt: at(41), Moving: true,
		AskCommands: []string{"git push*", "ü, \"b\""},
		OnHostLoss:  cay.ResumeOnHostLoss,
		Volumes: []cay.VolumeMount{
			{Volume: cay.NewVolumeID(), Name: "a", Path: "/mnt/ü", SubPath: "b/c", ReadOnly: true}, {Volume: cay.NewVolumeID(), Name: "d", Path: "/d"},
		},
	}
}

// wholeSandbox fails for a field of a new sandbox that has no value: no test
// would read it back.
func wholeSandbox(t testing.TB, b cay.Sandbox) {
	t.Helper()
	later := []string{"Version", "Cause", "EndedAt", "Reading", "Once"} // set by changes, or not read back
	fields := reflect.ValueOf(b)
	for i := range fields.NumField() {
		if name := fields.Type().Field(i).Name; fields.Field(i).IsZero() && !slices.Contains(later, name) {
			t.Errorf("%s has no value in sandbox()", name)
		}
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%s differs (-want +got):\n%s", what, d)
	}
}

func wantKind(t testing.TB, err error, kind cay.Kind) {
	t.Helper()
	if cay.KindOf(err) != kind {
		t.Fatalf("error %v is of kind %q, want %q", err, cay.KindOf(err), kind)
	}
}

func testTeams(t *testing.T, s store.Store) {
	list, err := s.Teams(t.Context())
	noError(t, err)
	if len(list) != 0 {
		t.Fatalf("a new store has teams: %v", list)
	}
	a := addTeam(t, s, "a")
	b := cay.Team{ID: cay.NewTeamID(), Name: "b", CreatedAt: at(5)}
	noError(t, s.AddTeam(t.Context(), b))
	list, err = s.Teams(t.Context())
	noError(t, err)
	same(t, "the list", list, []cay.Team{a, b})
	got, err := s.TeamByName(t.Context(), "b")
	noError(t, err)
	same(t, "the team", got, b)
	_, err = s.TeamByName(t.Context(), "c")
	wantKind(t, err, cay.NotFound)
	wantKind(t, s.AddTeam(t.Context(), cay.Team{ID: cay.NewTeamID(), Name: "a"}), cay.Conflict)
	wantKind(t, s.AddTeam(t.Context(), a), cay.Conflict)

	a.Name, a.DisabledAt = "new", at(6)
	noError(t, s.UpdateTeam(t.Context(), a))
	got, err = s.Team(t.Context(), a.ID)
	noError(t, err)
	same(t, "the changed team", got, a)
	b.Name = "new"
	wantKind(t, s.UpdateTeam(t.Context(), b), cay.Conflict)
	wantKind(t, s.UpdateTeam(t.Context(), cay.Team{ID: "none", Name: "x"}), cay.NotFound)
	wantKind(t, s.ClearTeam(t.Context(), a.ID, time.Time{}), cay.NotFound) // it is not removed
}

// A removed team is nowhere but where its removal is finished, and its name is
// free.
func testRemoveTeam(t *testing.T, s store.Store) {
	a := addTeam(t, s, "a")
	noError(t, s.AddKey(t.Context(), cay.APIKey{ID: cay.NewKeyID(), Team: a.ID, Hash: [32]byte{1}}))
	noError(t, s.AddSecret(t.Context(), cay.Secret{ID: "x", Team: a.ID, Name: "S"}))
	noError(t, s.AddSandbox(t.Context(), sandbox(a.ID, 1)))
	n, err := s.CountTeam(t.Context(), a.ID)
	noError(t, err)
	same(t, "the count", n, store.TeamCount{Running: 1, Keys: 1, Secrets: 1})
	noError(t, s.RemoveTeam(t.Context(), a.ID, at(7)))
	wantKind(t, s.RemoveTeam(t.Context(), a.ID, at(8)), cay.NotFound)
	_, err = s.Team(t.Context(), a.ID)
	wantKind(t, err, cay.NotFound)
	_, err = s.TeamByName(t.Context(), "a")
	wantKind(t, err, cay.NotFound)
	list, err := s.Teams(t.Context())
	noError(t, err)
	if len(list) != 0 {
		t.Fatalf("it is still listed: %v", list)
	}
	_, team, err := s.KeyByHash(t.Context(), [32]byte{1})
	noError(t, err)
	if !team.RemovedAt.Equal(at(7)) {
		t.Errorf("its key is of %+v", team)
	}
	again := addTeam(t, s, "a")
	noError(t, s.AddKey(t.Context(), cay.APIKey{ID: cay.NewKeyID(), Team: again.ID, Hash: [32]byte{2}}))
	for _, done := range []time.Time{{}, at(9)} {
		left, err := s.RemovedTeams(t.Context())
		noError(t, err)
		if len(left) != 1 || left[0].ID != a.ID || !left[0].RemovedAt.Equal(at(7)) {
			t.Errorf("to be cleared are %+v", left)
		}
		noError(t, s.ClearTeam(t.Context(), a.ID, done))
	}
	left, err := s.RemovedTeams(t.Context())
	noError(t, err)
	n, counted := s.CountTeam(t.Context(), a.ID)
	noError(t, counted)
	if len(left) != 0 || n.Keys != 0 || n.Secrets != 0 {
		t.Errorf("left are %+v, %+v", left, n)
	}
	_, _, err = s.KeyByHash(t.Context(), [32]byte{2})
	noError(t, err)
}

func testKeys(t *testing.T, s store.Store) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	key := cay.APIKey{
		ID: cay.NewKeyID(), Team: a.ID, Name: "first", Hash: sha256.Sum256([]byte("x")),
		CreatedBy: "a person", Person: "ann", Exchange: "x", LastUsed: at(2), ExpiresAt: at(3), Grant: []string{"viewer", "secrets:write"},
		Bounds: cay.KeyBounds{Templates: []string{"base"}, Metadata: map[string]string{"app": "x"}},
		Mask:   "e2b_12…34", CreatedAt: at(1),
	}
	noError(t, s.AddKey(t.Context(), key))
	got, team, err := s.KeyByHash(t.Context(), key.Hash)
	noError(t, err)
	same(t, "the key", got, key)
	same(t, "its team", team, a)
	_, _, err = s.KeyByHash(t.Context(), sha256.Sum256([]byte("y")))
	wantKind(t, err, cay.NotFound)

	twin := key
	twin.ID = cay.NewKeyID()
	wantKind(t, s.AddKey(t.Context(), twin), cay.Conflict)

	list, err := s.Keys(t.Context(), a.ID)
	noError(t, err)
	same(t, "the list", list, []cay.APIKey{key})
	list, err = s.Keys(t.Context(), b.ID)
	noError(t, err)
	if len(list) != 0 {
		t.Fatalf("a team sees another's keys: %v", list)
	}
	ids, err := s.KeysOfPerson(t.Context(), "ann")
	noError(t, err)
	same(t, "the keys of a person", ids, []cay.KeyID{key.ID})
	ids, err = s.KeysOfPerson(t.Context(), "")
	noError(t, err)
	if len(ids) != 0 {
		t.Errorf("the keys of no person are %v", ids)
	}
	theirs := key
	theirs.Team = b.ID
	wantKind(t, s.UpdateKey(t.Context(), theirs), cay.NotFound)
	_, err = s.Key(t.Context(), b.ID, key.ID)
	wantKind(t, err, cay.NotFound)
	key.Name, key.ExpiresAt = "renamed", at(9)
	noError(t, s.UpdateKey(t.Context(), key))
	key.LastUsed = at(8)
	noError(t, s.KeysUsed(t.Context(), map[cay.KeyID]time.Time{key.ID: at(8), "none": at(9)}))
	noError(t, s.KeysUsed(t.Context(), map[cay.KeyID]time.Time{key.ID: at(5)})) // a late one changes nothing
	got, err = s.Key(t.Context(), a.ID, key.ID)
	noError(t, err)
	same(t, "the changed key", got, key)
	other := cay.APIKey{ID: cay.NewKeyID(), Team: a.ID, Hash: [32]byte{1}}
	noError(t, s.AddKey(t.Context(), other))
	wantKind(t, s.RemoveKey(t.Context(), b.ID, key.ID), cay.NotFound)
	noError(t, s.RemoveKey(t.Context(), a.ID, key.ID))
	_, _, err = s.KeyByHash(t.Context(), key.Hash)
	wantKind(t, err, cay.NotFound)
	noError(t, s.AddKey(t.Context(), key))
	n, err := s.PruneKeys(t.Context(), at(9))
	noError(t, err)
	same(t, "keys that expired", n, 0)
	n, err = s.PruneKeys(t.Context(), at(10))
	noError(t, err)
	same(t, "keys that expired", n, 1)
	_, err = s.Key(t.Context(), a.ID, other.ID) // it never expires
	noError(t, err)
}

func testSandbox(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	want := sandbox(team.ID, 1)
	want.AutoResume = true
	wholeSandbox(t, want)
	noError(t, s.AddSandbox(t.Context(), want))
	wantKind(t, s.AddSandbox(t.Context(), want), cay.Conflict)
	got, err := s.Sandbox(t.Context(), team.ID, want.ID)
	noError(t, err)
	same(t, "the sandbox", got, want)

	want.State, want.Cause, want.EndedAt = cay.Killed, cay.CauseOutOfMemory, at(9)
	want.Node, want.Instance, want.Env = "other", cay.NewInstanceID(), nil
	want.EndAt, want.Unresponsive = at(77), false
	other := want
	other.Network = cay.DefaultNetwork() // is not UpdateSandbox's to change
	noError(t, s.UpdateSandbox(t.Context(), other))
	wantKind(t, s.UpdateSandbox(t.Context(), other), cay.Conflict) // it has changed since it was read
	wantKind(t, s.UpdateNetwork(t.Context(), other), cay.Conflict)
	want.Version++
	other.Version++
	got, err = s.Sandbox(t.Context(), team.ID, want.ID)
	noError(t, err)
	same(t, "the sandbox", got, want)
	other.EndAt = at(78)
	noError(t, s.UpdateNetwork(t.Context(), other))
	other.Version++
	got, err = s.Sandbox(t.Context(), team.ID, want.ID)
	noError(t, err)
	same(t, "the sandbox", got, other)

	bare := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Creating}
	noError(t, s.AddSandbox(t.Context(), bare))
	got, err = s.Sandbox(t.Context(), team.ID, bare.ID)
	noError(t, err)
	same(t, "the bare sandbox", got, bare)

	wantKind(t, s.UpdateSandbox(t.Context(), sandbox(team.ID, 1)), cay.NotFound)
	_, err = s.Sandbox(t.Context(), team.ID, "inone")
	wantKind(t, err, cay.NotFound)
}

func testSandboxTeams(t *testing.T, s store.Store) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	box := sandbox(a.ID, 1)
	noError(t, s.AddSandbox(t.Context(), box))
	_, err := s.Sandbox(t.Context(), b.ID, box.ID)
	wantKind(t, err, cay.NotFound)
	stolen := box
	stolen.Team = b.ID
	wantKind(t, s.UpdateSandbox(t.Context(), stolen), cay.NotFound)
	wantKind(t, s.UpdateNetwork(t.Context(), stolen), cay.NotFound)
	list, err := s.Sandboxes(t.Context(), store.SandboxQuery{Team: b.ID})
	noError(t, err)
	if len(list) != 0 {
		t.Fatalf("a team sees another's sandboxes: %v", list)
	}
}

func testLive(t *testing.T, s store.Store) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	var want []cay.Sandbox
	for i, state := range []cay.State{cay.Running, cay.Killed, cay.Creating, cay.Paused, cay.Pausing, cay.Resuming} {
		box := sandbox([]cay.TeamID{a.ID, b.ID}[i%2], i)
		box.State = state
		noError(t, s.AddSandbox(t.Context(), box))
		if state != cay.Killed {
			want = append(want, box)
		}
	}
	got, err := s.LiveSandboxes(t.Context())
	noError(t, err)
	same(t, "what lives", got, want)
}

func testPrune(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	var ids []cay.SandboxID
	for i := range 4 {
		box := sandbox(team.ID, i)
		if i > 0 { // the first one lives
			box.State, box.EndedAt = cay.Killed, at(i*100)
		}
		noError(t, s.AddSandbox(t.Context(), box))
		ids = append(ids, box.ID)
	}
	n, err := s.PruneSandboxes(t.Context(), at(250))
	noError(t, err)
	if n != 2 {
		t.Fatalf("%d sandboxes were forgotten, want 2", n)
	}
	list, err := s.Sandboxes(t.Context(), store.SandboxQuery{Team: team.ID})
	noError(t, err)
	same(t, "what is left", idsOf(list), []cay.SandboxID{ids[3], ids[0]})
}

func testParallel(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 8 {
		wg.Go(func() {
			for j := range 4 {
				box := sandbox(team.ID, i*10+j)
				if err := s.AddSandbox(t.Context(), box); err != nil {
					errs <- err
					return
				}
				box.State = cay.Paused
				if err := s.UpdateSandbox(t.Context(), box); err != nil {
					errs <- err
					return
				}
				got, err := s.Sandbox(t.Context(), team.ID, box.ID)
				if err != nil || got.State != cay.Paused {
					errs <- fmt.Errorf("wrote paused, read %q, %v", got.State, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	n, err := s.CountSandboxes(t.Context(), store.SandboxQuery{Team: team.ID, States: []cay.State{cay.Paused}})
	noError(t, err)
	if n != 32 {
		t.Fatalf("%d sandboxes, want 32", n)
	}
}

func idsOf(list []cay.Sandbox) []cay.SandboxID {
	var out []cay.SandboxID
	for _, b := range list {
		out = append(out, b.ID)
	}
	return out
}
