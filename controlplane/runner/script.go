package runner

import (
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// MaxWait bounds how long one step of a script may wait.
const MaxWait = time.Hour

// Script is work that needs no guest: the engine performs it by itself, through
// the same log and the same states as a command. Exactly one of Reply and Steps
// is set.
type Script struct {
	// Reply answers the message with a message of these parts; no task is made.
	Reply []task.Part `json:"reply,omitempty"`
	// Steps are performed in order. The last one ends the task, or leaves it
	// waiting for a message, whose own script goes on with the task.
	Steps []Step `json:"steps,omitempty"`
}

// Step changes the status of the task, or adds a part to an artifact of it:
// exactly one of State and Part is set.
type Step struct {
	// Wait is how long after the task's last change of status this step is
	// performed, at the earliest.
	Wait time.Duration `json:"wait,omitempty"`

	State task.State `json:"state,omitempty"`
	// Text is what the agent says with the state; empty for nothing.
	Text string `json:"text,omitempty"`

	Part     *task.Part `json:"part,omitempty"`
	Artifact string     `json:"artifact,omitempty"` // that Part is added to
	Last     bool       `json:"last,omitempty"`     // nothing is added to it any more
}

// Status is the step that changes the state of the task. The agent says text
// with it, nothing if that is empty.
func Status(state task.State, text string) Step { return Step{State: state, Text: text} }

// Whole is the step that makes an artifact of one part.
func Whole(artifact string, p task.Part) Step { return Step{Part: &p, Artifact: artifact, Last: true} }

// Check returns the rule that a script breaks.
func (s Script) Check() error {
	if (len(s.Reply) == 0) == (len(s.Steps) == 0) {
		return errors.New("a script must have either a reply or steps")
	}
	for i, p := range s.Reply {
		if err := checkPart(p); err != nil {
			return fmt.Errorf("reply[%d]: %w", i, err)
		}
	}
	open := map[string]bool{} // by artifact: whether more may be added
	for i, step := range s.Steps {
		if err := step.check(i == len(s.Steps)-1, open); err != nil {
			return fmt.Errorf("steps[%d]: %w", i, err)
		}
	}
	for name, more := range open {
		if more {
			return fmt.Errorf("artifact %q must have a last part", name)
		}
	}
	return nil
}

func (s Step) check(last bool, open map[string]bool) error {
	settled := s.State.Terminal() || s.State.Interrupted()
	switch {
	case s.Wait < 0 || s.Wait > MaxWait:
		return fmt.Errorf("must not wait longer than %s", MaxWait)
	case (s.State == "") == (s.Part == nil):
		return errors.New("must have either a state or a part")
	case settled != last:
		return errors.New("the last step, and no other, must end the task or leave it waiting")
	case s.Part == nil && (!s.State.Valid() || s.State == task.Submitted):
		return fmt.Errorf("cannot bring a task to state %q", s.State)
	case s.Part == nil && (s.Artifact != "" || s.Last), s.Part != nil && s.Text != "":
		return errors.New("must not have members of the other kind of step")
	case s.Part == nil:
		return nil
	case s.Artifact == "":
		return errors.New("must name the artifact of the part")
	}
	if more, begun := open[s.Artifact]; begun && !more {
		return fmt.Errorf("artifact %q is complete", s.Artifact)
	}
	open[s.Artifact] = !s.Last
	return checkPart(*s.Part)
}

// checkPart also refuses empty content: a part is stored at a position of its
// own in the artifact.
func checkPart(p task.Part) error {
	switch data, form := task.Content(p); {
	case form == nil:
		return errors.New("a part must have exactly one of text, raw, url and data")
	case len(data) == 0:
		return errors.New("a part must not be empty")
	}
	return nil
}
