package proc

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/cay-run/cay/api/proto/process"
)

// The codec's own writing reads back as the message.
func TestCodec(t *testing.T) {
	long := []byte(strings.Repeat("\x00\xff<&>\"\\", 5000))
	for _, event := range []*pb.ProcessEvent{
		{Event: &pb.ProcessEvent_Data{Data: stdoutEvent(long)}},
		{Event: &pb.ProcessEvent_Data{Data: stderrEvent([]byte("a"))}},
		{Event: &pb.ProcessEvent_Data{Data: ptyEvent([]byte{})}},
		{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: 7}}},
		nil,
	} {
		for _, want := range []proto.Message{&pb.StartResponse{Event: event}, &pb.ConnectResponse{Event: event}} {
			text, err := jsonCodec{}.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			got := want.ProtoReflect().New().Interface()
			if err := protojson.Unmarshal(text, got); err != nil || !proto.Equal(want, got) {
				t.Errorf("%.200s: %v", text, err)
			}
		}
	}
	for _, bad := range []string{"", "{", "[]", `{"event":5}`} {
		if err := (jsonCodec{}).Unmarshal([]byte(bad), &pb.StartResponse{}); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// A message that the codec reads is written and read again as the same.
func FuzzCodec(f *testing.F) {
	for _, text := range []string{
		``, `{}`, `null`, `[]`, `{"process":{"cmd":"sh","args":["-c","x"],"envs":{"a":"b"},"cwd":"/"},"tag":"t","stdin":false}`,
		`{"process":null}`, `{"pty":{"size":{"cols":4294967295,"rows":0}}}`, `{"pty":{"size":{"cols":-1}}}`,
		`{"process":{"cmd":"\ud800"}}`, `{"process":{"envs":{"":""}},"unknown":{"deep":[[[]]]}}`, `{"stdin":"true"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var first, second pb.StartRequest
		if (jsonCodec{}).Unmarshal(text, &first) != nil {
			return
		}
		again, err := jsonCodec{}.Marshal(&first)
		if err != nil {
			t.Fatal(err)
		}
		if err := (jsonCodec{}).Unmarshal(again, &second); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if !proto.Equal(&first, &second) {
			t.Errorf("%s became %s", text, again)
		}
	})
}
