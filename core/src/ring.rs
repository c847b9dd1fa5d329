//! placeholder
/// Id
pub trait Id: Copy {
    /// new
    fn new(index: u32, generation: u32) -> Self;
    /// index
    fn index(self) -> u32;
    /// generation
    fn generation(self) -> u32;
}
