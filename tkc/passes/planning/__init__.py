"""Parts of `plan`: what data flow permits, how operands reach the engines, what a choice costs."""
